/* SPDX-License-Identifier: Apache-2.0 */
#include "harness/program/manual.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "fixtures/fixtures.h"
#include "harness/run/verdict.h"
#include "quant/quant.h"

/* Text of a page: what roff would take for its own is escaped. */
static void put(FILE *stream, const char *text, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        switch (text[i]) {
        case '\\':
            fputs("\\e", stream);
            break;
        case '-':
            fputs("\\-", stream);
            break;
        case '\'':
            fputs("\\(aq", stream);
            break;
        case '.':
            fputs(i == 0 || text[i - 1] == '\n' ? "\\&." : ".", stream);
            break;
        default:
            fputc(text[i], stream);
        }
}

/* Paragraphs of help: lines that begin with a blank are examples, and stay as they are. */
static void put_paragraphs(FILE *stream, const char *text)
{
    bool example = false;
    while (*text) {
        size_t length = strcspn(text, "\n");
        bool indented = text[0] == ' ';
        if (indented != example)
            fputs(indented ? ".PP\n.nf\n" : ".fi\n.PP\n", stream);
        else if (length == 0)
            fputs(".PP\n", stream);
        example = indented;
        put(stream, text, length);
        if (length)
            fputc('\n', stream);
        text += length + (text[length] == '\n');
    }
    if (example)
        fputs(".fi\n", stream);
}

static void put_heading(FILE *stream, const char *name, const char *title)
{
    fprintf(stream, ".TH %s 1 \"\" \"gaugeblock %s\" \"gaugeblock\"\n.SH NAME\n", title, GB_VERSION);
    put(stream, name, strlen(name));
    fputs(" \\- ", stream);
}

static void put_option(FILE *stream, const struct argp_option *o)
{
    fputs(".TP\n", stream);
    if (option_has_letter(o))
        fprintf(stream, "\\fB\\-%c\\fR, ", o->key);
    fputs("\\fB\\-\\-", stream);
    put(stream, o->name, strlen(o->name));
    fputs("\\fR", stream);
    if (o->arg) {
        fputs("=\\fI", stream);
        put(stream, o->arg, strlen(o->arg));
        fputs("\\fR", stream);
    }
    fputc('\n', stream);
    put(stream, o->doc, strlen(o->doc));
    fputc('\n', stream);
}

void manual_command(FILE *stream, const struct command *c)
{
    const char *behind = strchr(c->argp->doc, '\v');
    char name[64], title[64];
    snprintf(name, sizeof name, "gaugeblock-%s", c->name);
    snprintf(title, sizeof title, "GAUGEBLOCK-%s", c->name);
    for (char *t = title; *t; t++)
        *t = (char)(*t >= 'a' && *t <= 'z' ? *t - 'a' + 'A' : *t);
    put_heading(stream, name, title);
    put(stream, c->summary, strlen(c->summary));
    fprintf(stream, "\n.SH SYNOPSIS\n\\fBgaugeblock %s\\fR [\\fIOPTION\\fR...] ", c->name);
    put(stream, c->argp->args_doc, strlen(c->argp->args_doc));
    fputs("\n.SH DESCRIPTION\n", stream);
    put(stream, c->argp->doc, behind ? (size_t)(behind - c->argp->doc) : strlen(c->argp->doc));
    fputs("\n.SH OPTIONS\n", stream);
    for (const struct argp_option *o = c->argp->options; o && o->name; o++)
        put_option(stream, o);
    put_option(stream, &help_option);
    if (behind) {
        fputs(".SH NOTES\n", stream);
        put_paragraphs(stream, behind + 1);
    }
    fputs(".SH SEE ALSO\n\\fBgaugeblock\\fR(1)\n", stream);
}

void manual_program(FILE *stream, const struct command *const *commands, size_t count)
{
    put_heading(stream, "gaugeblock", "GAUGEBLOCK");
    put(stream, PROGRAM_SUMMARY, strlen(PROGRAM_SUMMARY));
    fputs("\n.SH SYNOPSIS\n\\fBgaugeblock\\fR \\fICOMMAND\\fR [\\fIOPTION\\fR...]\n.SH COMMANDS\n", stream);
    for (size_t i = 0; i < count; i++)
        if (commands[i]->summary) {
            fprintf(stream, ".TP\n\\fBgaugeblock\\-%s\\fR(1)\n", commands[i]->name);
            put(stream, commands[i]->summary, strlen(commands[i]->summary));
            fputc('\n', stream);
        }
    fputs(".SH EXIT STATUS\n", stream);
    put_paragraphs(stream, PROGRAM_EXIT_CODES);
    fputs(".SH EXAMPLE\n.nf\n", stream);
    put(stream, PROGRAM_EXAMPLE, strlen(PROGRAM_EXAMPLE));
    fputs(".fi\n.SH SEE ALSO\n", stream);
    for (size_t i = 0, shown = 0; i < count; i++)
        if (commands[i]->summary)
            fprintf(stream, "%s\\fBgaugeblock\\-%s\\fR(1)", shown++ ? ",\n" : "", commands[i]->name);
    fputc('\n', stream);
}

/* One file of the folder: what `write` writes, or the page of a command. */
static enum gb_status write_file(const char *folder, const char *name, const struct command *const *commands,
                                 size_t count, void (*write)(FILE *, const struct command *const *, size_t),
                                 struct gb_error *error)
{
    char path[4200], *text = NULL;
    size_t bytes = 0;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *stream = open_memstream(&text, &bytes);
    if (stream && write)
        write(stream, commands, count);
    else if (stream)
        manual_command(stream, *commands);
    enum gb_status status = stream && fclose(stream) == 0 ? gb_file_write(path, text, bytes, error)
                                                          : gb_fail(error, GB_ENOMEM, "no memory for a page");
    free(text);
    return status;
}

int manual_write(const struct command *const *commands, size_t count, const char *folder)
{
    static const char *const parts[] = {"man1", "bash", "zsh", "fish"};
    static const struct {
        const char *name;
        void (*write)(FILE *, const struct command *const *, size_t);
    } files[] = {{"man1/gaugeblock.1", manual_program},
                 {"bash/gaugeblock", completion_bash},
                 {"zsh/_gaugeblock", completion_zsh},
                 {"fish/gaugeblock.fish", completion_fish}};
    struct gb_error error;
    enum gb_status status = GB_OK;
    char path[4200];
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, parts[i]);
        mkdir(path, 0777); /* writing into it says what is wrong */
    }
    for (size_t i = 0; status == GB_OK && i < sizeof files / sizeof *files; i++)
        status = write_file(folder, files[i].name, commands, count, files[i].write, &error);
    for (size_t i = 0; status == GB_OK && i < count; i++) {
        snprintf(path, sizeof path, "man1/gaugeblock-%s.1", commands[i]->name);
        if (commands[i]->summary)
            status = write_file(folder, path, &commands[i], 1, NULL, &error);
    }
    return status == GB_OK ? EXIT_PASS : command_error("manual", "%s", error.message);
}
