// zdb, the judge of pools in tests, without the release of its memory at its end.
//
// zdb finishes in half a second with a small pool: it prints the verdict, exports the pool and
// has its exit status. Then kernel_fini of libzpool releases the cache buffer by buffer for
// another five seconds, although the process ends anyway. This library, in LD_PRELOAD, replaces
// that function. Output and exit status are the same.
//
// `scripts/test.sh` uses it; `make nightly` runs zdb as it is.
void kernel_fini(void)
{
}
