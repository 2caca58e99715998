// SPDX-License-Identifier: GPL-2.0

//! Work that takes long, such as callbacks of a client must not do themselves.

use core::{
    cell::UnsafeCell,
    marker::PhantomPinned, //
};
use kernel::{
    bindings,
    container_of,
    prelude::*,
    static_lock_class,
    str::as_char_ptr_in_const_context,
    sync::{
        atomic::{
            Acquire,
            Atomic,
            Release, //
        },
        Arc, //
    },
    types::Opaque, //
};
use pin_init::Wrapper;

/// A flag that tells somebody else to stop; it is raised once and never taken back.
#[derive(Clone)]
pub(crate) struct Stop(Arc<Atomic<bool>>);

impl Stop {
    /// Makes a flag that is not raised.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn new() -> Result<Self> {
        Ok(Self(Arc::new(Atomic::new(false), GFP_KERNEL)?))
    }

    /// Tells whoever looks at the flag to stop.
    pub(crate) fn raise(&self) {
        self.0.store(true, Release);
    }

    /// Tells whether this is the same flag.
    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Tells whether the flag has been raised.
    pub(crate) fn is_raised(&self) -> bool {
        self.0.load(Acquire)
    }
}

/// Lets other threads have their turn, in a loop that does not sleep: `schedule()`.
pub(crate) fn relax() {
    // SAFETY: Nothing here runs in a context that must not sleep.
    unsafe { bindings::schedule() };
}

/// What a [`Task`] does.
pub(crate) trait Job: Send + Unpin + 'static {
    /// Does it, once. May sleep, and may take long, but must return soon after `stop` is raised.
    fn run(&mut self, stop: &Stop);

    /// It was called off before it has begun. May sleep.
    fn called_off(&mut self);
}

/// A [`Job`] that is run in a work item of its own (`struct work_struct`).
///
/// Dropping it raises the job's [`Stop`] and waits until the job has returned, or, if it has not begun,
/// calls it off.
///
/// # Invariants
///
/// `work` is initialised, its function is [`Self::run`], and it has been queued once.
#[pin_data(PinnedDrop)]
pub(crate) struct Task<T: Job> {
    #[pin]
    work: Opaque<bindings::work_struct>,
    /// For the work item only, from when it is queued until `cancel_work_sync()` has returned.
    /// Pinned only to be made in its place: a job does not rely on that.
    #[pin]
    job: UnsafeCell<T>,
    stop: Stop,
    #[pin]
    _pin: PhantomPinned,
}

// SAFETY: The job is used by one thread at a time, and is `Send`; C synchronises its use of `work`.
unsafe impl<T: Job> Send for Task<T> {}

impl<T: Job> Task<T> {
    /// Has the job, which is made in its place, run by the system's unbound work queue, on whichever
    /// CPU.
    ///
    /// # Errors
    ///
    /// `ENOMEM`, and those of making the job.
    pub(crate) fn start(job: impl Init<T, Error>) -> Result<Pin<KBox<Self>>> {
        let task = KBox::try_pin_init(
            try_pin_init!(Self {
                work <- Opaque::ffi_init(|work: *mut bindings::work_struct| {
                    // SAFETY: The slot is writable memory for a `struct work_struct`, which stays
                    // where it is. The lock class and the name are static.
                    unsafe {
                        bindings::init_work_with_key(
                            work,
                            Some(Self::run),
                            false,
                            as_char_ptr_in_const_context(c"krdma_smoke::Task"),
                            static_lock_class!().as_ptr(),
                        )
                    };
                }),
                job <- UnsafeCell::pin_init(job),
                stop: Stop::new()?,
                _pin: PhantomPinned,
            }),
            GFP_KERNEL,
        )?;

        // INVARIANT: It is queued here, once.
        // SAFETY: The work item is initialised, and stays until `PinnedDrop` has waited for it. The
        // queue is a global of C that is always there.
        unsafe {
            bindings::queue_work_on(
                bindings::wq_misc_consts_WORK_CPU_UNBOUND as c_int,
                bindings::system_dfl_wq,
                task.work.get(),
            )
        };

        Ok(task)
    }

    /// `work_struct.func`.
    ///
    /// # Safety
    ///
    /// Must be called by the work queue only, for the work item of a `Task<T>`.
    unsafe extern "C" fn run(work: *mut bindings::work_struct) {
        // SAFETY: By the safety requirement. `PinnedDrop` waits before anything is freed.
        let this = unsafe { &*container_of!(Opaque::cast_from(work), Self, work) };

        // SAFETY: The item was queued once, so this is the only call, and nobody else uses the job
        // meanwhile.
        unsafe { &mut *this.job.get() }.run(&this.stop);
    }
}

#[pinned_drop]
impl<T: Job> PinnedDrop for Task<T> {
    fn drop(self: Pin<&mut Self>) {
        self.stop.raise();

        // SAFETY: By the type invariant the work item is initialised. It is not queued any more, and
        // does not run any more, when this returns; no lock is held that the job takes.
        let is_called_off = unsafe { bindings::cancel_work_sync(self.work.get()) };

        if is_called_off {
            // SAFETY: The work item was pending and is not any more, so nobody else uses the job.
            unsafe { &mut *self.job.get() }.called_off();
        }
    }
}
