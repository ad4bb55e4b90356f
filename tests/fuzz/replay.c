/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs a fuzz target over the files of a folder, where there is no libFuzzer, and expects of each the answer that is
 * kept: messages, and a hash of what was read; nothing stays mapped. With KEEP=1 in the environment they are written
 * anew. Usage: fuzz_TARGET FOLDER INPUTS KEPT
 */
#include <dirent.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/fuzz/fuzz.h"

/* Larger than any kept input. */
enum { LARGEST = 1 << 20 };

/* Whether a reader has left a file of an input mapped. */
static int is_mapped(void)
{
    FILE *file = fopen("/proc/self/maps", "r");
    char line[4096];
    int mapped = !file;
    while (file && fgets(line, sizeof line, file))
        if (strstr(line, fuzz_folder())) {
            printf("mapped: %s", line);
            mapped = 1;
        }
    if (file)
        fclose(file);
    return mapped;
}

static int replay(const char *path, const char *name)
{
    FILE *file = fopen(path, "rb");
    uint8_t *bytes = malloc(LARGEST);
    size_t count = file && bytes ? fread(bytes, 1, LARGEST, file) : 0;
    int good = file && bytes && feof(file) && !ferror(file);
    if (good) {
        /* Exactly as long as the input, so that a sanitiser sees a read behind it. */
        uint8_t *input = realloc(bytes, count ? count : 1);
        bytes = input ? input : bytes;
        printf("%s\n", path);
        fflush(stdout);
        fprintf(fuzz_answers, "%s: ", name);
        fuzz_touched = 0xCBF29CE484222325u;
        LLVMFuzzerTestOneInput(bytes, count);
        good = !is_mapped();
        fprintf(fuzz_answers, "%08" PRIx64 "\n", fuzz_touched >> 32);
    }
    free(bytes);
    if (file)
        fclose(file);
    return good;
}

/* Whether the file holds this text; which line is the first other one. */
static int is_kept(const char *path, const char *text)
{
    FILE *file = fopen(path, getenv("KEEP") ? "w+" : "r");
    char line[4096];
    int same = file != NULL;
    if (file && getenv("KEEP")) {
        fputs(text, file);
        rewind(file);
    }
    for (; same && fgets(line, sizeof line, file); text += same ? strlen(line) : 0)
        same = !strncmp(text, line, strlen(line));
    same = same && !*text;
    if (!same)
        printf("not as %s has it; if it is right: KEEP=1, and read git diff\nnow: %.*s\n", path,
               (int)strcspn(text, "\n"), text);
    if (file)
        fclose(file);
    return same;
}

static int visible(const struct dirent *entry)
{
    return entry->d_name[0] != '.';
}

int main(int argc, char **argv)
{
    struct dirent **entries;
    char *text = NULL;
    size_t size = 0;
    int runs = 0, count = argc == 4 ? scandir(argv[1], &entries, visible, alphasort) : -1;
    fuzz_answers = open_memstream(&text, &size);
    if (count < 0 || !fuzz_answers) {
        fprintf(stderr, "usage: %s FOLDER INPUTS KEPT\n", argv[0]);
        return EXIT_FAILURE;
    }
    for (int i = 0; i < count; i++) {
        char path[4096];
        snprintf(path, sizeof path, "%s/%s", argv[1], entries[i]->d_name);
        runs += replay(path, entries[i]->d_name);
        free(entries[i]);
    }
    free(entries);
    fclose(fuzz_answers);
    printf("%d inputs of %s\n", runs, argv[2]);
    const int kept = is_kept(argv[3], text);
    free(text);
    return runs > 0 && runs == atoi(argv[2]) && kept ? EXIT_SUCCESS : EXIT_FAILURE;
}
