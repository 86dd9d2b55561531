/* Preloaded: counts the bytes of large blocks alive at once. Small ones are the interpreter's.
 *
 * counted_live() and counted_peak() are read by ctypes; counted_restart() makes the peak what is alive now.
 */
#include <malloc.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>

enum { LARGE = 64 << 10 };

static atomic_long live, peak;

long counted_live(void) { return atomic_load(&live); }
long counted_peak(void) { return atomic_load(&peak); }
void counted_restart(void) { atomic_store(&peak, atomic_load(&live)); }

static void add(void *block) {
    size_t size = block ? malloc_usable_size(block) : 0;
    if (size < LARGE) return;
    long now = atomic_fetch_add(&live, (long)size) + (long)size, before = atomic_load(&peak);
    while (now > before && !atomic_compare_exchange_weak(&peak, &before, now)) {}
}

static void drop(void *block) {
    size_t size = block ? malloc_usable_size(block) : 0;
    if (size >= LARGE) atomic_fetch_sub(&live, (long)size);
}

extern void *__libc_malloc(size_t), *__libc_realloc(void *, size_t), *__libc_calloc(size_t, size_t);
extern void __libc_free(void *);
extern void *__libc_memalign(size_t, size_t);

void *malloc(size_t size) { void *p = __libc_malloc(size); add(p); return p; }
void *calloc(size_t n, size_t size) { void *p = __libc_calloc(n, size); add(p); return p; }
void free(void *p) { drop(p); __libc_free(p); }
void *memalign(size_t align, size_t size) { void *p = __libc_memalign(align, size); add(p); return p; }
void *aligned_alloc(size_t align, size_t size) { return memalign(align, size); }
void *realloc(void *old, size_t size) {
    drop(old);
    void *p = __libc_realloc(old, size);
    add(p ? p : (size ? old : NULL));
    return p;
}
int posix_memalign(void **out, size_t align, size_t size) {
    *out = memalign(align, size);
    return *out ? 0 : 12;
}
