/* SPDX-License-Identifier: Apache-2.0 */
/* Stands in for FlashInfer's header of this name, of which MonoMoE needs one check. */
#ifndef GB_TESTS_GPU_PEERS_TVM_FFI_UTILS_H
#define GB_TESTS_GPU_PEERS_TVM_FFI_UTILS_H

#include <cstdlib>
#include <iostream>

/* Takes a message by <<, and ends the program with it unless the check held. */
struct peer_check {
    bool held;
    ~peer_check()
    {
        if (!held) {
            std::cerr << '\n';
            exit(1);
        }
    }
    template <class T> peer_check &operator<<(const T &part)
    {
        if (!held)
            std::cerr << part;
        return *this;
    }
};
#define TVM_FFI_ICHECK(condition)                                                                                      \
    peer_check                                                                                                         \
    {                                                                                                                  \
        bool(condition)                                                                                                \
    }

#endif
