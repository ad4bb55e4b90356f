/* SPDX-License-Identifier: Apache-2.0 */
#include "harness/run/hash.h"

#include <openssl/evp.h>
#include <stdio.h>

void hash_sha256(const void *data, size_t bytes, char *text)
{
    unsigned char digest[EVP_MAX_MD_SIZE];
    unsigned length = 0;
    text[0] = '\0';
    if (EVP_Digest(data, bytes, digest, &length, EVP_sha256(), NULL))
        for (unsigned i = 0; i < length; i++)
            snprintf(text + 2 * i, 3, "%02x", digest[i]);
}
