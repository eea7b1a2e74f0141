//! The largest allocation of a thread: a file's claims about its size must not be believed.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    static LARGEST: Cell<usize> = const { Cell::new(0) };
}

struct Watched;

#[global_allocator]
static WATCHED: Watched = Watched;

fn note(size: usize) {
    // A thread that is ending has no cell any more.
    LARGEST.try_with(|largest| largest.set(largest.get().max(size))).unwrap_or_default();
}

// SAFETY: every call is handed on to the system's allocator as it came.
unsafe impl GlobalAlloc for Watched {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        note(layout.size());
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        note(layout.size());
        // SAFETY: the caller's promise.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        note(size);
        // SAFETY: the caller's promise.
        unsafe { System.realloc(at, layout, size) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(at, layout) }
    }
}

/// Forgets what was allocated before.
pub(crate) fn reset() {
    LARGEST.with(|largest| largest.set(0));
}

/// Bytes of the largest allocation of this thread since [`reset`].
pub(crate) fn largest() -> usize {
    LARGEST.with(Cell::get)
}
