/* SPDX-License-Identifier: Apache-2.0 */
/* Runs a fuzz target over the files of a folder, where there is no libFuzzer. Usage: fuzz_TARGET FOLDER INPUTS */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>

#include "tests/fuzz/fuzz.h"

/* Larger than any kept input. */
enum { LARGEST = 1 << 20 };

static int replay(const char *path)
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
        LLVMFuzzerTestOneInput(bytes, count);
    }
    free(bytes);
    if (file)
        fclose(file);
    return good;
}

int main(int argc, char **argv)
{
    int runs = 0;
    DIR *folder = argc == 3 ? opendir(argv[1]) : NULL;
    if (!folder) {
        fprintf(stderr, "usage: %s FOLDER INPUTS\n", argv[0]);
        return EXIT_FAILURE;
    }
    for (struct dirent *entry; (entry = readdir(folder));) {
        char path[4096];
        snprintf(path, sizeof path, "%s/%s", argv[1], entry->d_name);
        if (entry->d_name[0] != '.')
            runs += replay(path);
    }
    closedir(folder);
    printf("%d inputs of %s\n", runs, argv[2]);
    return runs > 0 && runs == atoi(argv[2]) ? EXIT_SUCCESS : EXIT_FAILURE;
}
