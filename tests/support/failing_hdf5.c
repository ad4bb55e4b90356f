/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "tests/support/failing_hdf5.h"

#include <dlfcn.h>
#include <hdf5.h>

static uint32_t calls, failing;

uint32_t hdf5_fail(uint32_t call)
{
    uint32_t made = calls;
    calls = 0;
    failing = call;
    return made;
}

static bool fails(void)
{
    return ++calls == failing;
}

/* The function of the library, in the place of which the program has its own. */
#define FAILING(RESULT, NAME, PARAMETERS, ARGUMENTS)                                                                   \
    __attribute__((visibility("default"))) RESULT NAME PARAMETERS                                                      \
    {                                                                                                                  \
        static RESULT(*own) PARAMETERS;                                                                                \
        if (!own)                                                                                                      \
            *(void **)&own = dlsym(RTLD_NEXT, #NAME);                                                                  \
        return fails() ? -1 : own ARGUMENTS;                                                                           \
    }

/* One that closes, and then says that it has not. */
#define CLOSING(NAME)                                                                                                  \
    __attribute__((visibility("default"))) herr_t NAME(hid_t object)                                                   \
    {                                                                                                                  \
        static herr_t (*own)(hid_t);                                                                                   \
        if (!own)                                                                                                      \
            *(void **)&own = dlsym(RTLD_NEXT, #NAME);                                                                  \
        const herr_t closed = own(object);                                                                             \
        return fails() ? -1 : closed;                                                                                  \
    }

FAILING(hid_t, H5Fcreate, (const char *a, unsigned b, hid_t c, hid_t d), (a, b, c, d))
FAILING(hid_t, H5Fopen, (const char *a, unsigned b, hid_t c), (a, b, c))
FAILING(hid_t, H5Gcreate2, (hid_t a, const char *b, hid_t c, hid_t d, hid_t e), (a, b, c, d, e))
FAILING(herr_t, H5Gget_info, (hid_t a, H5G_info_t *b), (a, b))
FAILING(hid_t, H5Oopen, (hid_t a, const char *b, hid_t c), (a, b, c))
FAILING(htri_t, H5Lexists, (hid_t a, const char *b, hid_t c), (a, b, c))
FAILING(hid_t, H5Acreate2, (hid_t a, const char *b, hid_t c, hid_t d, hid_t e, hid_t f), (a, b, c, d, e, f))
FAILING(hid_t, H5Aopen, (hid_t a, const char *b, hid_t c), (a, b, c))
FAILING(htri_t, H5Aexists, (hid_t a, const char *b), (a, b))
FAILING(hid_t, H5Aget_type, (hid_t a), (a))
FAILING(herr_t, H5Awrite, (hid_t a, hid_t b, const void *c), (a, b, c))
FAILING(herr_t, H5Aread, (hid_t a, hid_t b, void *c), (a, b, c))
FAILING(hid_t, H5Dcreate2, (hid_t a, const char *b, hid_t c, hid_t d, hid_t e, hid_t f, hid_t g), (a, b, c, d, e, f, g))
FAILING(herr_t, H5Dwrite, (hid_t a, hid_t b, hid_t c, hid_t d, hid_t e, const void *f), (a, b, c, d, e, f))
FAILING(herr_t, H5Dread, (hid_t a, hid_t b, hid_t c, hid_t d, hid_t e, void *f), (a, b, c, d, e, f))
FAILING(hid_t, H5Dget_space, (hid_t a), (a))
FAILING(hid_t, H5Dget_type, (hid_t a), (a))
FAILING(hid_t, H5Dget_create_plist, (hid_t a), (a))
FAILING(herr_t, H5Fflush, (hid_t a, H5F_scope_t b), (a, b))
CLOSING(H5Aclose)
CLOSING(H5Dclose)
CLOSING(H5Fclose)
CLOSING(H5Gclose)

/* Of a kind of identifiers, which are numbered on, those that are valid from *since up to a new one, which ends here.
 */
static uint32_t valid_since(hid_t *since, hid_t new, herr_t (*close)(hid_t))
{
    uint32_t valid = 0;
    for (hid_t id = *since; *since && id < new; id++)
        valid += H5Iis_valid(id) > 0;
    close(new);
    *since = new;
    return valid;
}

uint32_t hdf5_left_open(void)
{
    static hid_t spaces, types, lists;
    const ssize_t of_files = H5Fget_obj_count((hid_t)H5F_OBJ_ALL, H5F_OBJ_ALL);
    return (uint32_t)of_files + valid_since(&spaces, H5Screate(H5S_SCALAR), H5Sclose) +
           valid_since(&types, H5Tcopy(H5T_NATIVE_INT), H5Tclose) +
           valid_since(&lists, H5Pcreate(H5P_DATASET_CREATE), H5Pclose);
}

bool hdf5_put_count(const char *path, const char *name, uint64_t value)
{
    hid_t file = H5Fopen(path, H5F_ACC_RDWR, H5P_DEFAULT), attribute = H5Aopen(file, name, H5P_DEFAULT);
    bool good = H5Awrite(attribute, H5T_NATIVE_UINT64, &value) >= 0;
    H5Aclose(attribute);
    return H5Fclose(file) >= 0 && good;
}
