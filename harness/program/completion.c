/* SPDX-License-Identifier: Apache-2.0 */
/* What shells complete: commands, their options, and after an option that takes one, a file or a name. */
#include <string.h>

#include "harness/program/manual.h"

/* A shell command that prints the names an option takes, or "": files, or nothing that could be listed. */
static const char *names_of(const struct argp_option *o)
{
    return !strcmp(o->name, "kernel")  ? "gaugeblock list kernels 2>/dev/null | sed 1d | cut -d\" \" -f1"
           : !strcmp(o->name, "model") ? "gaugeblock list models 2>/dev/null | sed 1d | cut -d\" \" -f1"
                                       : "";
}

static bool takes_file(const struct argp_option *o)
{
    return o->arg && (strstr(o->arg, "FILE") || strstr(o->arg, ".h5") || strstr(o->arg, ".so"));
}

/* The words that a command's argument is one of, "a|b|c"; NULL: files. */
static const char *choices_of(const struct command *c)
{
    const char *arguments = c->argp->args_doc;
    return strchr(arguments, '|') ? arguments : NULL;
}

/* "a|b|c" with blanks for bars. */
static void put_words(FILE *stream, const char *words)
{
    for (; *words; words++)
        fputc(*words == '|' ? ' ' : *words, stream);
}

/* Inside a word in single quotes; a backslash before each of `special`. */
static void put_quoted(FILE *stream, const char *text, const char *special)
{
    for (; *text; text++) {
        if (strchr(special, *text))
            fputc('\\', stream);
        fputs(*text == '\'' ? "'\\''" : (char[]){*text, '\0'}, stream);
    }
}

static void bash_command(FILE *stream, const struct command *c)
{
    fprintf(stream, "    %s)\n        case $before in\n", c->name);
    for (const struct argp_option *o = c->argp->options; o && o->name; o++) {
        if (!o->arg)
            continue;
        fprintf(stream, "        --%s", o->name);
        if (option_has_letter(o))
            fprintf(stream, "|-%c", o->key);
        if (names_of(o)[0])
            fprintf(stream, ") COMPREPLY=($(compgen -W '$(%s)' -- \"$word\")); return ;;\n", names_of(o));
        else
            fprintf(stream, ") %sreturn ;;\n", takes_file(o) ? "_gaugeblock_files; " : "");
    }
    fprintf(stream, "        esac\n        options='");
    for (const struct argp_option *o = c->argp->options; o && o->name; o++)
        fprintf(stream, "--%s ", o->name);
    fprintf(stream, "--%s'\n", help_option.name);
    if (choices_of(c)) {
        fputs("        words='", stream);
        put_words(stream, choices_of(c));
        fputs("'\n", stream);
    }
    fputs("        ;;\n", stream);
}

void completion_bash(FILE *stream, const struct command *const *commands, size_t count)
{
    fputs(
        "# bash completion of gaugeblock, written by it\n"
        "_gaugeblock_files()\n{\n"
        "    compopt -o filenames 2>/dev/null\n"
        "    COMPREPLY=($(compgen -f -- \"$word\"))\n}\n\n"
        "_gaugeblock()\n{\n"
        "    local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]} options= words=\n"
        "    COMPREPLY=()\n"
        "    if [[ $word == = ]]; then word=; elif [[ $before == = ]]; then before=${COMP_WORDS[COMP_CWORD - 2]}; fi\n"
        "    if ((COMP_CWORD == 1)) || { ((COMP_CWORD == 2)) && [[ ${COMP_WORDS[1]} == help ]]; }; then\n"
        "        COMPREPLY=($(compgen -W '",
        stream);
    for (size_t i = 0; i < count; i++)
        if (commands[i]->summary)
            fprintf(stream, "%s ", commands[i]->name);
    fputs("help --help --version' -- \"$word\"))\n        return\n    fi\n    case ${COMP_WORDS[1]} in\n", stream);
    for (size_t i = 0; i < count; i++)
        if (commands[i]->summary)
            bash_command(stream, commands[i]);
    fputs("    *) return ;;\n    esac\n"
          "    if [[ $word == -* ]]; then\n        COMPREPLY=($(compgen -W \"$options\" -- \"$word\"))\n"
          "    elif [[ $words ]]; then\n        COMPREPLY=($(compgen -W \"$words\" -- \"$word\"))\n"
          "    else\n        _gaugeblock_files\n    fi\n}\n"
          "complete -F _gaugeblock gaugeblock\n",
          stream);
}

static void zsh_option(FILE *stream, const struct argp_option *o)
{
    const char *star = o->flags & OPTION_REPEATABLE ? "*" : "";
    if (option_has_letter(o))
        fprintf(stream, "            %s{-%c,--%s%s}'[", star[0] ? "'*'" : "", o->key, o->name, o->arg ? "=" : "");
    else
        fprintf(stream, "            '%s--%s%s[", star, o->name, o->arg ? "=" : "");
    put_quoted(stream, o->doc, "[]:");
    fputc(']', stream);
    if (o->arg) {
        fputc(':', stream);
        put_quoted(stream, o->arg, "[]:");
        fputc(':', stream);
        if (names_of(o)[0])
            fprintf(stream, "{compadd -- $(%s)}", names_of(o));
        else if (takes_file(o))
            fputs("_files", stream);
    }
    fputs("' \\\n", stream);
}

void completion_zsh(FILE *stream, const struct command *const *commands, size_t count)
{
    fputs("#compdef gaugeblock\n"
          "# zsh completion of gaugeblock, written by it\n"
          "_gaugeblock()\n{\n"
          "    local -a commands=(\n",
          stream);
    for (size_t i = 0; i < count; i++)
        if (commands[i]->summary) {
            fprintf(stream, "        '%s:", commands[i]->name);
            put_quoted(stream, commands[i]->summary, "");
            fputs("'\n", stream);
        }
    fputs("        'help:tell more of a command'\n    )\n"
          "    if ((CURRENT == 2)) || { ((CURRENT == 3)) && [[ $words[2] == help ]] }; then\n"
          "        _describe command commands\n        return\n    fi\n"
          "    shift words\n    ((CURRENT--))\n    case $words[1] in\n",
          stream);
    for (size_t i = 0; i < count; i++) {
        if (!commands[i]->summary)
            continue;
        fprintf(stream, "    %s)\n        _arguments \\\n", commands[i]->name);
        for (const struct argp_option *o = commands[i]->argp->options; o && o->name; o++)
            zsh_option(stream, o);
        zsh_option(stream, &help_option);
        if (choices_of(commands[i])) {
            fputs("            '1:which:(", stream);
            put_words(stream, choices_of(commands[i]));
            fputs(")'\n", stream);
        } else {
            fputs("            '*:file:_files'\n", stream);
        }
        fputs("        ;;\n", stream);
    }
    fputs("    esac\n}\n_gaugeblock \"$@\"\n", stream);
}

static void fish_option(FILE *stream, const char *command, const struct argp_option *o)
{
    fprintf(stream, "complete -c gaugeblock -n '__fish_seen_subcommand_from %s' -l %s", command, o->name);
    if (option_has_letter(o))
        fprintf(stream, " -s %c", o->key);
    if (o->arg && names_of(o)[0])
        fprintf(stream, " -x -a '(%s)'", names_of(o));
    else if (o->arg)
        fprintf(stream, takes_file(o) ? " -r -F" : " -x");
    fputs(" -d '", stream);
    for (const char *c = o->doc; *c; c++) /* in fish a backslash stands before a quote */
        fprintf(stream, *c == '\'' || *c == '\\' ? "\\%c" : "%c", *c);
    fputs("'\n", stream);
}

void completion_fish(FILE *stream, const struct command *const *commands, size_t count)
{
    fputs("# fish completion of gaugeblock, written by it\n"
          "complete -c gaugeblock -f\n"
          "complete -c gaugeblock -n __fish_use_subcommand -l help -d 'list the commands'\n"
          "complete -c gaugeblock -n __fish_use_subcommand -l version -d 'print the version'\n"
          "complete -c gaugeblock -n __fish_use_subcommand -a help -d 'tell more of a command'\n",
          stream);
    for (size_t i = 0; i < count; i++) {
        const struct command *c = commands[i];
        if (!c->summary)
            continue;
        fprintf(stream, "complete -c gaugeblock -n __fish_use_subcommand -a %s -d '%s'\n", c->name, c->summary);
        fprintf(stream, "complete -c gaugeblock -n '__fish_seen_subcommand_from help' -a %s\n", c->name);
        for (const struct argp_option *o = c->argp->options; o && o->name; o++)
            fish_option(stream, c->name, o);
        fish_option(stream, c->name, &help_option);
        fprintf(stream, "complete -c gaugeblock -n '__fish_seen_subcommand_from %s' ", c->name);
        if (choices_of(c)) {
            fputs("-a '", stream);
            put_words(stream, choices_of(c));
            fputs("'\n", stream);
        } else {
            fputs("-F\n", stream);
        }
    }
}
