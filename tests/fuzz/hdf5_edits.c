/* SPDX-License-Identifier: Apache-2.0 */
/* Edits that libhdf5 itself makes to a good file, so that it passes its checksums and reaches our own checks. */
#include <stdlib.h>
#include <string.h>

#include <hdf5.h>

#include "tests/fuzz/fuzz.h"

/* What is left of the input. */
struct edits {
    const struct fuzz_names *names;
    const uint8_t *next;
    const uint8_t *end;
};

static uint32_t take(struct edits *e, uint32_t below)
{
    return e->next < e->end ? *e->next++ % below : 0;
}

/* Up to `count` bytes; zeros behind the end of the input. */
static void take_bytes(struct edits *e, uint8_t *bytes, size_t count)
{
    size_t left = (size_t)(e->end - e->next), given = count < left ? count : left;
    memset(bytes, 0, count);
    memcpy(bytes, e->next, given);
    e->next += given;
}

static hid_t take_type(struct edits *e)
{
    const hid_t types[] = {H5T_STD_U8LE,  H5T_STD_U16LE,  H5T_STD_I32LE, H5T_IEEE_F32LE,  H5T_IEEE_F64LE,
                           H5T_STD_U16BE, H5T_IEEE_F64BE, H5T_STD_I8LE,  H5T_STD_U64LE,   H5T_STD_I64BE,
                           H5T_STD_B8LE,  H5T_C_S1,       H5T_C_S1,      H5T_STD_REF_OBJ, H5T_STD_U8LE};
    uint32_t which = take(e, sizeof types / sizeof *types);
    hid_t type = H5Tcopy(types[which]);
    if (which == 11)
        H5Tset_size(type, 1 + take(e, 80));
    if (which == 12)
        H5Tset_size(type, H5T_VARIABLE);
    if (which == 14) {
        hsize_t three = 3;
        H5Tclose(type);
        type = H5Tarray_create2(H5T_STD_U8LE, 1, &three);
    }
    return type;
}

/* rank 0 .. 4, each size 0 .. 95 */
static hid_t take_space(struct edits *e, int *rank, hsize_t *dims)
{
    *rank = (int)take(e, 5);
    for (int i = 0; i < *rank; i++)
        dims[i] = take(e, 96);
    return *rank ? H5Screate_simple(*rank, dims, NULL) : H5Screate(take(e, 8) == 7 ? H5S_NULL : H5S_SCALAR);
}

static void remove_link(hid_t file, const char *path)
{
    H5Ldelete(file, path, H5P_DEFAULT);
}

static herr_t copy_attribute(hid_t from, const char *name, const H5A_info_t *info, void *to)
{
    char value[512];
    hid_t old = H5Aopen(from, name, H5P_DEFAULT), type = H5Aget_type(old), space = H5Aget_space(old);
    if (info->data_size <= sizeof value && H5Aread(old, type, value) >= 0) {
        hid_t made = H5Acreate2(*(hid_t *)to, name, type, space, H5P_DEFAULT, H5P_DEFAULT);
        H5Awrite(made, type, value);
        H5Aclose(made);
    }
    H5Sclose(space);
    H5Tclose(type);
    H5Aclose(old);
    return 0;
}

/* A dataset of any type, shape and storage in the place of another, with its attributes. */
static void replace(hid_t file, const char *path, struct edits *e)
{
    int rank;
    hsize_t dims[4], chunk[4];
    hid_t type = take_type(e), space = take_space(e, &rank, dims), creation = H5Pcreate(H5P_DATASET_CREATE);
    uint32_t layout = take(e, 4), filters = take(e, 8);
    if (layout < 2 && rank) {
        for (int i = 0; i < rank; i++)
            chunk[i] = 1 + take(e, 64);
        H5Pset_chunk(creation, rank, chunk);
        if (filters & 1)
            H5Pset_shuffle(creation);
        if (filters & 2)
            H5Pset_deflate(creation, 1);
        if (filters & 4)
            H5Pset_fletcher32(creation);
    } else {
        H5Pset_layout(creation, layout == 2 ? H5D_COMPACT : H5D_CONTIGUOUS);
    }
    hid_t old = H5Dopen2(file, path, H5P_DEFAULT);
    remove_link(file, path);
    hid_t made = H5Dcreate2(file, path, type, space, H5P_DEFAULT, creation, H5P_DEFAULT);
    if (made >= 0 && old >= 0)
        H5Aiterate2(old, H5_INDEX_NAME, H5_ITER_INC, NULL, copy_attribute, &made);
    hssize_t points = H5Sget_simple_extent_npoints(space);
    size_t bytes = points > 0 ? (size_t)points * H5Tget_size(type) : 0;
    void *values = bytes && bytes < 1 << 16 ? calloc(1, bytes) : NULL;
    if (made >= 0 && values && take(e, 2) && H5Tget_class(type) != H5T_STRING && H5Tget_class(type) != H5T_REFERENCE)
        H5Dwrite(made, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, values);
    free(values);
    if (made >= 0)
        H5Dclose(made);
    if (old >= 0)
        H5Dclose(old);
    H5Pclose(creation);
    H5Sclose(space);
    H5Tclose(type);
}

static void put_attribute(hid_t file, const char *path, struct edits *e)
{
    uint8_t value[512];
    const char *name = e->names->attributes[take(e, e->names->attribute_count)];
    hid_t object = H5Oopen(file, path, H5P_DEFAULT), type = take_type(e), space = H5Screate(H5S_SCALAR);
    hsize_t two = 2;
    if (take(e, 8) == 7) {
        H5Sclose(space);
        space = H5Screate_simple(1, &two, NULL);
    }
    bool variable = H5Tis_variable_str(type) > 0;
    char *text = (char *)value;
    take_bytes(e, value, variable ? 8 : H5Tget_size(type));
    value[sizeof value - 1] = 0;
    if (object >= 0) {
        H5Adelete(object, name);
        hid_t made = H5Acreate2(object, name, type, space, H5P_DEFAULT, H5P_DEFAULT);
        char *texts[2] = {text, text};
        value[variable ? 8 : sizeof value - 1] = 0;
        if (made >= 0 && take(e, 8) != 7)
            H5Awrite(made, type, variable ? (void *)texts : value);
        if (made >= 0)
            H5Aclose(made);
        H5Oclose(object);
    }
    H5Sclose(space);
    H5Tclose(type);
}

static void put_element(hid_t file, const char *path, struct edits *e)
{
    static double values[1 << 13];
    hid_t dataset = H5Dopen2(file, path, H5P_DEFAULT);
    if (dataset < 0)
        return;
    hid_t type = H5Dget_type(dataset), space = H5Dget_space(dataset);
    hssize_t points = H5Sget_simple_extent_npoints(space);
    size_t size = H5Tget_size(type);
    uint32_t high = take(e, 256), at = high << 8 | take(e, 256);
    if (points > 0 && (size_t)points * size <= sizeof values && H5Tis_variable_str(type) == 0 &&
        H5Tget_class(type) != H5T_REFERENCE && H5Dread(dataset, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, values) >= 0) {
        take_bytes(e, (uint8_t *)values + at % (size_t)points * size, size);
        H5Dwrite(dataset, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, values);
    }
    H5Sclose(space);
    H5Tclose(type);
    H5Dclose(dataset);
}

static void put_link(hid_t file, const char *path, struct edits *e)
{
    const char *target = e->names->objects[take(e, e->names->object_count)];
    remove_link(file, path);
    switch (take(e, 4)) {
    case 0:
        H5Lcreate_soft(target, file, path, H5P_DEFAULT, H5P_DEFAULT);
        break;
    case 1:
        H5Lcreate_hard(file, target, file, path, H5P_DEFAULT, H5P_DEFAULT);
        break;
    case 2:
        H5Lcreate_external("/dev/null", target, file, path, H5P_DEFAULT, H5P_DEFAULT);
        break;
    default:
        H5Gclose(H5Gcreate2(file, path, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT));
    }
}

static hid_t open_for_change(const char *path)
{
    hid_t access = H5Pcreate(H5P_FILE_ACCESS);
    H5Pset_libver_bounds(access, H5F_LIBVER_LATEST, H5F_LIBVER_LATEST);
    H5Pset_fclose_degree(access, H5F_CLOSE_STRONG);
    hid_t file = H5Fopen(path, H5F_ACC_RDWR, access);
    H5Pclose(access);
    return file;
}

static void edit(hid_t file, struct edits *e)
{
    for (int i = 0; i < 8 && e->next < e->end; i++) {
        uint32_t what = take(e, 5);
        const char *path = e->names->objects[take(e, e->names->object_count)];
        if (what == 0)
            put_element(file, path, e);
        else if (what == 1)
            put_attribute(file, path, e);
        else if (what == 2)
            replace(file, path, e);
        else if (what == 3)
            put_link(file, path, e);
        else
            remove_link(file, path);
    }
}

void fuzz_edit(const char *path, const struct fuzz_names *names, const uint8_t *bytes, size_t count)
{
    H5Eset_auto2(H5E_DEFAULT, NULL, NULL);
    hid_t file = open_for_change(path);
    if (file < 0)
        abort();
    edit(file, &(struct edits){names, bytes, bytes + count});
    H5Fclose(file);
}
