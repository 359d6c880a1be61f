//! Release builds do not check the order of locks.

#[derive(Debug)]
pub(super) struct LockClass;

impl LockClass {
    pub(super) const fn new() -> LockClass {
        LockClass
    }

    #[inline(always)]
    pub(super) fn before_wait(&self, _: &'static str) {}

    #[inline(always)]
    pub(super) fn acquired(&self, _: &'static str, _: usize) {}
}

#[inline(always)]
pub(super) fn released(_: usize) {}
