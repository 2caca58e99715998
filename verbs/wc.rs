// SPDX-License-Identifier: GPL-2.0

//! Work completions.

use super::PollContext;
use crate::bindings;
use core::{
    cell::UnsafeCell,
    ptr::NonNull, //
};
use kernel::{
    fmt,
    macros::paste,
    prelude::*,
    sync::atomic::{
        Acquire,
        Atomic,
        Relaxed,
        Release, //
    },
    types::Opaque, //
};

/// How a work request ended: `enum ib_wc_status`.
///
/// Displayed by its name in `include/rdma/ib_verbs.h`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Status(bindings::ib_wc_status);

macro_rules! statuses {
    ($($name:ident)*) => {
        paste! {
            impl Status {
                $(pub(crate) const $name: Self = Self(bindings::[<ib_wc_status_IB_WC_ $name>]);)*

                fn name(self) -> Option<&'static str> {
                    match self {
                        $(Self::$name => Some(concat!("IB_WC_", stringify!($name))),)*
                        _ => None,
                    }
                }
            }
        }
    };
}

statuses! {
    SUCCESS
    LOC_LEN_ERR
    LOC_QP_OP_ERR
    LOC_EEC_OP_ERR
    LOC_PROT_ERR
    WR_FLUSH_ERR
    MW_BIND_ERR
    BAD_RESP_ERR
    LOC_ACCESS_ERR
    REM_INV_REQ_ERR
    REM_ACCESS_ERR
    REM_OP_ERR
    RETRY_EXC_ERR
    RNR_RETRY_EXC_ERR
    LOC_RDD_VIOL_ERR
    REM_INV_RD_REQ_ERR
    REM_ABORT_ERR
    INV_EECN_ERR
    INV_EEC_STATE_ERR
    FATAL_ERR
    RESP_TIMEOUT_ERR
    GENERAL_ERR
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => f.write_fmt(fmt!("status {}", self.0)),
        }
    }
}

/// What a work request was that has completed: `enum ib_wc_opcode`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Opcode(bindings::ib_wc_opcode);

impl Opcode {
    pub(crate) const SEND: Self = Self(bindings::ib_wc_opcode_IB_WC_SEND);
    pub(crate) const RDMA_WRITE: Self = Self(bindings::ib_wc_opcode_IB_WC_RDMA_WRITE);
    pub(crate) const RDMA_READ: Self = Self(bindings::ib_wc_opcode_IB_WC_RDMA_READ);
    pub(crate) const COMP_SWAP: Self = Self(bindings::ib_wc_opcode_IB_WC_COMP_SWAP);
    pub(crate) const FETCH_ADD: Self = Self(bindings::ib_wc_opcode_IB_WC_FETCH_ADD);
    pub(crate) const RECV: Self = Self(bindings::ib_wc_opcode_IB_WC_RECV);
    pub(crate) const RECV_RDMA_WITH_IMM: Self =
        Self(bindings::ib_wc_opcode_IB_WC_RECV_RDMA_WITH_IMM);
}

impl fmt::Display for Opcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// How a work request has completed: what is of use of `struct ib_wc`, and when it was seen.
///
/// Of what the device says, only `status` and `vendor_err` mean anything after an error.
#[derive(Clone, Copy)]
pub(crate) struct WorkCompletion {
    /// How often it has completed since it was posted: once, or something is wrong. Nothing else
    /// means anything before that.
    pub(crate) times: u32,
    /// The completion named the queue pair that it was posted to.
    pub(crate) is_own: bool,
    pub(crate) status: Status,
    pub(crate) opcode: Opcode,
    /// What the vendor's documentation may explain.
    pub(crate) vendor_err: u32,
    /// How many bytes were received.
    pub(crate) byte_len: u32,
    /// Received with the message, in the byte order of the processor.
    pub(crate) immediate: Option<u32>,
    /// When the completion was taken from its queue; see [`now()`].
    pub(crate) time: u64,
}

impl WorkCompletion {
    /// It has not completed.
    const NONE: Self = Self {
        times: 0,
        is_own: false,
        status: Status::SUCCESS,
        opcode: Opcode::SEND,
        vendor_err: 0,
        byte_len: 0,
        immediate: None,
        time: 0,
    };
}

/// How many work requests of an endpoint are outstanding, and who waits for them.
///
/// It belongs to one thread, and is not `Sync`. Completions come in that thread, or in another one.
///
/// # Invariants
///
/// `context` is that of the completion queue of all its [`Entry`]s. By [`PollContext::Direct`]
/// completions come only while this thread is in `ib_process_cq_direct()` or `ib_drain_qp()`; by
/// [`PollContext::Workqueue`] they come from `ib_cq_poll_work()`, one after another.
#[pin_data]
pub(super) struct Outstanding {
    /// How many there are; and [`Self::BAD`] if one has failed, or has completed twice.
    ///
    /// In one thread it is used as plain memory: each use of an atomic variable is a call.
    left: Atomic<i32>,
    context: PollContext,
    #[pin]
    over: Opaque<kernel::bindings::completion>,
}

impl Outstanding {
    /// Makes any number of work requests that there can be negative, and nothing of it zero.
    const BAD: i32 = i32::MIN;

    /// Makes one for completions of a queue with this context.
    pub(super) fn new(context: PollContext) -> impl PinInit<Self> {
        // INVARIANT: So is that of the queue, by the above.
        pin_init!(Self {
            left: Atomic::new(0),
            context,
            over <- Opaque::ffi_init(|over| {
                // SAFETY: The slot is writable memory for a `struct completion`, which stays where
                // it is.
                unsafe { kernel::bindings::init_completion(over) };
            }),
        })
    }

    /// Returns how many are outstanding; a negative number if something has gone wrong.
    ///
    /// What is recorded of the completions that it does not count any more is seen after this.
    pub(super) fn left(&self) -> i32 {
        match self.context {
            // SAFETY: By the type invariant no other thread uses it.
            PollContext::Direct => unsafe { *self.left.as_ptr() },
            // Pairs with the release in `subtract()`.
            PollContext::Workqueue => self.left.load(Acquire),
        }
    }

    /// Subtracts from what [`Self::left()`] returns; returns what is left. For completions only,
    /// which come one after another. The context is given, as who calls this knows it.
    fn subtract(&self, context: PollContext, number: i32) -> i32 {
        let former = match context {
            PollContext::Direct => {
                let left = self.left.as_ptr();

                // SAFETY: As in `left()`.
                unsafe { left.replace((*left).wrapping_sub(number)) }
            }
            PollContext::Workqueue => self.left.fetch_sub(number, Release),
        };

        former.wrapping_sub(number)
    }

    /// One has completed, which is recorded.
    fn complete(&self, context: PollContext, completion: &WorkCompletion) {
        if !completion.is_own || completion.status != Status::SUCCESS {
            self.spoil();
        }

        if self.subtract(context, 1) == 0 {
            self.wake(context);
        }
    }

    /// One has failed, or has completed twice: whoever waits is not to wait for the others.
    #[cold]
    fn spoil(&self) {
        if self.left() >= 0 {
            self.subtract(self.context, Self::BAD);
        }

        self.wake(self.context);
    }

    /// Wakes whoever waits, if that is another thread.
    fn wake(&self, context: PollContext) {
        if context == PollContext::Workqueue {
            // SAFETY: The completion was initialised.
            unsafe { kernel::bindings::complete(self.over.get()) };
        }
    }

    /// Makes ready for the completions of as many work requests as there are entries, which are to
    /// be posted at once.
    ///
    /// # Errors
    ///
    /// `EBUSY` if some are outstanding.
    pub(super) fn begin(&self, entries: &[Entry]) -> Result {
        let count = i32::try_from(entries.len()).map_err(|_| EINVAL)?;

        // The device, and what it causes, come after the call that posts.
        match self.context {
            PollContext::Direct => {
                let left = self.left();

                if left & !Self::BAD != 0 {
                    return Err(EBUSY);
                }

                // SAFETY: As in `left()`.
                unsafe { *self.left.as_ptr() = left | count };

                for entry in entries {
                    // SAFETY: Completions come in this thread, which is here.
                    unsafe { (*entry.completion.get()).times = 0 };
                }
            }
            PollContext::Workqueue => self.begin_for_another_thread(entries, count)?,
        }

        Ok(())
    }

    #[inline(never)]
    fn begin_for_another_thread(&self, entries: &[Entry], count: i32) -> Result {
        if self.count() != 0 {
            return Err(EBUSY);
        }

        // What nobody has waited for.
        // SAFETY: The completion was initialised.
        while unsafe { kernel::bindings::try_wait_for_completion(self.over.get()) } {}

        // Before the entries: what completes once more meanwhile is not to be taken for one of
        // these. Not stored, as it may spoil this at the same time.
        self.left.fetch_add(count, Relaxed);

        for entry in entries {
            // Not more: what was read of it was so before this.
            entry.is_recorded.store(0, Release);
        }

        Ok(())
    }

    /// Returns how many have not completed; if they were not all posted, it stays with those.
    pub(super) fn count(&self) -> i32 {
        self.left() & !Self::BAD
    }

    /// Returns how the work requests of `entries` have completed, which are of those that were posted
    /// last, if all of these have, once each and well; else nothing.
    pub(super) fn good_completions<'a>(
        &self,
        entries: &'a [Entry],
    ) -> impl Iterator<Item = &'a WorkCompletion> {
        let entries = if self.left() == 0 { entries } else { &[] };

        entries.iter().map(|entry| {
            // SAFETY: All are recorded, which is seen after the count is, and none is written to before
            // `begin()`: whoever calls that has borrowed the endpoint for itself.
            unsafe { &*entry.completion.get() }
        })
    }

    /// Returns how the work requests of `entries` have completed so far; they are of those that were
    /// posted last.
    pub(super) fn completions<'a>(
        &self,
        entries: &'a [Entry],
    ) -> impl Iterator<Item = WorkCompletion> + use<'a> {
        let context = self.context;
        let is_bad = self.left() < 0;

        entries.iter().map(move |entry| {
            if context == PollContext::Workqueue && entry.is_recorded.load(Acquire) == 0 {
                return WorkCompletion::NONE;
            }

            // SAFETY: It is written by this thread; or it has been written, which pairs with the
            // release in `Entry::record_for_another_thread()`, and is not again before `begin()`,
            // which is of this thread.
            let mut completion = unsafe { *entry.completion.get() };

            if is_bad && entry.is_repeated.load(Relaxed) != 0 {
                completion.times = 2;
            }

            completion
        })
    }

    /// Sleeps until it is over, or for a tenth of a second; perhaps not at all, if the wake-up for
    /// what was posted before came late.
    pub(super) fn wait(&self) {
        // SAFETY: The completion was initialised.
        unsafe {
            kernel::bindings::wait_for_completion_timeout(
                self.over.get(),
                (kernel::bindings::HZ / 10) as c_ulong,
            )
        };
    }
}

/// Where a completion finds the work request that it is of, and is recorded.
///
/// One that comes once more is noticed until the entry is used for another work request; after that it
/// cannot be told from that one's.
///
/// # Invariants
///
/// `outstanding` stays until the queue pair and its completion queue are gone; `cqe.done` is
/// [`Entry::done()`] if its context is [`PollContext::Direct`], and else
/// [`Entry::done_in_another_thread()`].
#[repr(C)]
pub(super) struct Entry {
    /// What `wr_cqe` points to; first, so that the entry is found.
    cqe: bindings::ib_cqe,
    outstanding: NonNull<Outstanding>,
    qp: *mut bindings::ib_qp,
    /// The first completion since the work request was posted. Plain memory: atomic members would
    /// cost a call each, for every message.
    completion: UnsafeCell<WorkCompletion>,
    /// That is written, and is not written again before [`Outstanding::begin()`]. Of use only where
    /// completions come in another thread.
    is_recorded: Atomic<i32>,
    /// It has completed once more.
    is_repeated: Atomic<i32>,
}

impl Entry {
    pub(super) fn new(outstanding: &Outstanding, qp: *mut bindings::ib_qp) -> Self {
        let done: unsafe extern "C" fn(_, _) = match outstanding.context {
            PollContext::Direct => Self::done,
            PollContext::Workqueue => Self::done_in_another_thread,
        };

        // INVARIANT: By the above; and the endpoint keeps what is outstanding, and its entries, until
        // its queue pair and its completion queue are gone.
        Self {
            cqe: bindings::ib_cqe { done: Some(done) },
            outstanding: outstanding.into(),
            qp,
            completion: UnsafeCell::new(WorkCompletion::NONE),
            is_recorded: Atomic::new(0),
            is_repeated: Atomic::new(0),
        }
    }

    /// `ib_cqe.done`, where completions come in the thread that posts.
    ///
    /// # Safety
    ///
    /// Must be called by `ib_core` only, with a valid completion of a work request that has the
    /// `cqe` of an `Entry`.
    unsafe extern "C" fn done(_cq: *mut bindings::ib_cq, wc: *mut bindings::ib_wc) {
        // SAFETY: By the safety requirement.
        if let Some((entry, completion)) = unsafe { Self::completed(wc) } {
            // SAFETY: This is its `cqe.done`, so by the type invariant its context is `Direct`.
            unsafe { entry.record(&completion) };
        }
    }

    /// `ib_cqe.done`, where completions come in another thread: two functions, so that neither takes
    /// what only the other needs.
    ///
    /// # Safety
    ///
    /// As of [`Self::done()`].
    unsafe extern "C" fn done_in_another_thread(
        _cq: *mut bindings::ib_cq,
        wc: *mut bindings::ib_wc,
    ) {
        // SAFETY: By the safety requirement.
        if let Some((entry, completion)) = unsafe { Self::completed(wc) } {
            entry.record_for_another_thread(&completion);
        }
    }

    /// Returns the entry that a completion belongs to, and what is recorded there.
    ///
    /// # Safety
    ///
    /// As of [`Self::done()`]. The entry may be used until that has returned.
    #[inline(always)]
    unsafe fn completed<'a>(wc: *mut bindings::ib_wc) -> Option<(&'a Self, WorkCompletion)> {
        // SAFETY: By the safety requirement.
        let wc = unsafe { &*wc };

        // SAFETY: By the safety requirement this is the first member of an entry. The endpoint keeps
        // it until its queue pair and its completion queue are gone.
        let entry = unsafe { &*wc.__bindgen_anon_1.wr_cqe.cast::<Self>() };

        if (cfg!(krdma_smoke_bug = "lost-completion")
            && wc.opcode == bindings::ib_wc_opcode_IB_WC_FETCH_ADD)
            || (cfg!(krdma_smoke_bug = "lost-flush")
                && wc.status == bindings::ib_wc_status_IB_WC_WR_FLUSH_ERR)
        {
            return None;
        }

        // Before anything is read of `wc`, which would have to be kept over the call.
        let time = now();
        let has_immediate = wc.wc_flags & bindings::ib_wc_flags_IB_WC_WITH_IMM as c_int != 0;
        // SAFETY: Any bytes are an integer.
        let immediate = unsafe { wc.ex.imm_data };

        let completion = WorkCompletion {
            times: 1,
            is_own: wc.qp == entry.qp
                && !(cfg!(krdma_smoke_bug = "wrong-qp")
                    && wc.opcode == bindings::ib_wc_opcode_IB_WC_COMP_SWAP),
            status: Status(wc.status),
            opcode: Opcode(wc.opcode),
            vendor_err: wc.vendor_err,
            byte_len: wc.byte_len,
            immediate: has_immediate.then_some(u32::from_be(immediate)),
            time,
        };

        Some((entry, completion))
    }

    /// Returns what it is one of.
    fn outstanding(&self) -> &Outstanding {
        // SAFETY: By the type invariant it is there as long as completions come.
        unsafe { self.outstanding.as_ref() }
    }

    /// Records a completion, in the thread that posts.
    ///
    /// # Safety
    ///
    /// The context of what is outstanding must be [`PollContext::Direct`].
    unsafe fn record(&self, completion: &WorkCompletion) {
        let outstanding = self.outstanding();
        let recorded = self.completion.get();

        // SAFETY: By the safety requirement, and the type invariant of `Outstanding`, this is the
        // thread that it belongs to.
        if unsafe { (*recorded).times } == 0 {
            // SAFETY: As above; what it has lent has completed, and this has not.
            unsafe { *recorded = *completion };
            outstanding.complete(PollContext::Direct, completion);
        } else {
            self.repeat(outstanding);
        }
    }

    /// Records a completion for the thread that posts, whichever that is.
    fn record_for_another_thread(&self, completion: &WorkCompletion) {
        let outstanding = self.outstanding();

        // Pairs with the release in `begin_for_another_thread()`.
        if self.is_recorded.load(Acquire) == 0 {
            // SAFETY: Nobody else uses it before it is said to be recorded: completions of one queue
            // come one after another.
            unsafe { *self.completion.get() = *completion };
            self.is_recorded.store(1, Release);
            outstanding.complete(PollContext::Workqueue, completion);
        } else {
            self.repeat(outstanding);
        }
    }

    /// It has completed once more, which stands for none of the others.
    #[cold]
    fn repeat(&self, outstanding: &Outstanding) {
        self.is_repeated.store(1, Relaxed);
        outstanding.spoil();
    }

    /// Returns what a work request points to that is to complete here.
    pub(super) fn as_raw(&self) -> *mut bindings::ib_cqe {
        // Of the whole entry, which `done()` makes of it again.
        core::ptr::from_ref(self).cast_mut().cast()
    }
}

/// Returns the time by the monotonic clock, in nanoseconds: `ktime_get()`.
pub(crate) fn now() -> u64 {
    // SAFETY: Nothing here runs in a non-maskable interrupt.
    let time = unsafe { kernel::bindings::ktime_get() };

    // Negative it never is.
    time as u64
}
