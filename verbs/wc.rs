// SPDX-License-Identifier: GPL-2.0

//! Work completions.

use super::PollContext;
use crate::bindings;
use core::ptr::NonNull;
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
/// After an error only `status`, `vendor_err` and `time` mean anything.
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

/// How many work requests of one queue are outstanding, and who waits for them.
#[pin_data]
pub(super) struct Outstanding {
    count: Atomic<i32>,
    /// One has failed, or has completed twice.
    is_bad: Atomic<i32>,
    /// Somebody sleeps until it is over.
    is_waited_for: bool,
    #[pin]
    over: Opaque<kernel::bindings::completion>,
}

impl Outstanding {
    pub(super) fn new(context: PollContext) -> impl PinInit<Self> {
        pin_init!(Self {
            count: Atomic::new(0),
            is_bad: Atomic::new(0),
            is_waited_for: context == PollContext::Workqueue,
            over <- Opaque::ffi_init(|over| {
                // SAFETY: The slot is writable memory for a `struct completion`, which stays where
                // it is.
                unsafe { kernel::bindings::init_completion(over) };
            }),
        })
    }

    /// Makes ready for the completions of as many work requests as there are entries, which are to
    /// be posted at once.
    ///
    /// # Errors
    ///
    /// `EBUSY` if some are outstanding.
    pub(super) fn begin(&self, entries: &[Entry]) -> Result {
        let count = i32::try_from(entries.len()).map_err(|_| EINVAL)?;

        if self.count() != 0 {
            return Err(EBUSY);
        }

        for entry in entries {
            entry.completions.store(0, Relaxed);
        }

        // SAFETY: The completion was initialised, and nothing is outstanding that would wake
        // anybody: `reinit_completion()`.
        unsafe { (*self.over.get()).done = 0 };

        // The device, and what it causes, come after the call that posts.
        self.count.store(count, Relaxed);

        Ok(())
    }

    /// Returns how many have not completed; if they were not all posted, it stays with those.
    pub(super) fn count(&self) -> i32 {
        self.count.load(Acquire)
    }

    /// Tells whether there is nothing to wait for: everything has completed, or something has gone
    /// wrong.
    pub(super) fn is_over(&self) -> bool {
        // Pairs with the release in `Entry::complete()`: what is recorded of the completions is
        // seen after this.
        self.count() <= 0 || self.is_bad()
    }

    pub(super) fn is_bad(&self) -> bool {
        self.is_bad.load(Acquire) != 0
    }

    /// Sleeps until it is over, or for a tenth of a second.
    pub(super) fn wait(&self) {
        // SAFETY: The completion was initialised.
        unsafe {
            kernel::bindings::wait_for_completion_timeout(
                self.over.get(),
                (kernel::bindings::HZ / 10) as c_ulong,
            )
        };
    }

    fn wake(&self) {
        if self.is_waited_for {
            // SAFETY: The completion was initialised.
            unsafe { kernel::bindings::complete(self.over.get()) };
        }
    }
}

/// Where a completion finds the work request that it is of, and is recorded.
///
/// Written by one completion queue's functions only, one after another, and read when all is over.
#[repr(C)]
pub(super) struct Entry {
    /// What `wr_cqe` points to; first, so that the entry is found.
    cqe: bindings::ib_cqe,
    outstanding: NonNull<Outstanding>,
    qp: *mut bindings::ib_qp,
    completions: Atomic<u32>,
    is_own: Atomic<i32>,
    status: Atomic<u32>,
    opcode: Atomic<u32>,
    vendor_err: Atomic<u32>,
    byte_len: Atomic<u32>,
    has_immediate: Atomic<i32>,
    immediate: Atomic<u32>,
    time: Atomic<u64>,
}

impl Entry {
    pub(super) fn new(outstanding: &Outstanding, qp: *mut bindings::ib_qp) -> Self {
        Self {
            cqe: bindings::ib_cqe {
                done: Some(Self::done),
            },
            outstanding: outstanding.into(),
            qp,
            completions: Atomic::new(0),
            is_own: Atomic::new(0),
            status: Atomic::new(0),
            opcode: Atomic::new(0),
            vendor_err: Atomic::new(0),
            byte_len: Atomic::new(0),
            has_immediate: Atomic::new(0),
            immediate: Atomic::new(0),
            time: Atomic::new(0),
        }
    }

    /// `ib_cqe.done`.
    ///
    /// # Safety
    ///
    /// Must be called by `ib_core` only, with a valid completion of a work request that has the
    /// `cqe` of an `Entry`.
    unsafe extern "C" fn done(_cq: *mut bindings::ib_cq, wc: *mut bindings::ib_wc) {
        // SAFETY: By the safety requirement.
        let wc = unsafe { &*wc };

        // SAFETY: By the safety requirement this is the first member of an entry. The endpoint keeps
        // it until its completion queue is freed.
        let entry = unsafe { &*wc.__bindgen_anon_1.wr_cqe.cast::<Self>() };

        entry.complete(wc);
    }

    fn complete(&self, wc: &bindings::ib_wc) {
        if cfg!(krdma_smoke_bug = "lost-completion")
            && wc.opcode == bindings::ib_wc_opcode_IB_WC_FETCH_ADD
        {
            return;
        }

        let time = now();
        let completions = self.completions.load(Relaxed);
        let is_own = wc.qp == self.qp
            && !(cfg!(krdma_smoke_bug = "wrong-qp")
                && wc.opcode == bindings::ib_wc_opcode_IB_WC_COMP_SWAP);

        self.completions.store(completions.wrapping_add(1), Relaxed);
        self.is_own.store(is_own.into(), Relaxed);
        self.status.store(wc.status, Relaxed);
        self.opcode.store(wc.opcode, Relaxed);
        self.vendor_err.store(wc.vendor_err, Relaxed);
        self.byte_len.store(wc.byte_len, Relaxed);
        self.has_immediate.store(
            wc.wc_flags & bindings::ib_wc_flags_IB_WC_WITH_IMM as c_int,
            Relaxed,
        );
        // SAFETY: Any bytes are an integer.
        let immediate = unsafe { wc.ex.imm_data };

        self.immediate.store(u32::from_be(immediate), Relaxed);
        self.time.store(time, Relaxed);

        // SAFETY: The endpoint keeps it until its completion queue is freed.
        let outstanding = unsafe { self.outstanding.as_ref() };

        if wc.status != bindings::ib_wc_status_IB_WC_SUCCESS || completions != 0 || !is_own {
            outstanding.is_bad.store(1, Release);
            outstanding.wake();
        }

        // One that completes again stands for none of the others.
        if completions == 0 && outstanding.count.fetch_sub(1, Release) == 1 {
            outstanding.wake();
        }
    }

    /// Returns what a work request points to that is to complete here.
    pub(super) fn as_raw(&self) -> *mut bindings::ib_cqe {
        // Of the whole entry, which `done()` makes of it again.
        core::ptr::from_ref(self).cast_mut().cast()
    }

    /// Returns what is recorded.
    pub(super) fn completion(&self) -> WorkCompletion {
        WorkCompletion {
            times: self.completions.load(Relaxed),
            is_own: self.is_own.load(Relaxed) != 0,
            status: Status(self.status.load(Relaxed)),
            opcode: Opcode(self.opcode.load(Relaxed)),
            vendor_err: self.vendor_err.load(Relaxed),
            byte_len: self.byte_len.load(Relaxed),
            immediate: (self.has_immediate.load(Relaxed) != 0)
                .then(|| self.immediate.load(Relaxed)),
            time: self.time.load(Relaxed),
        }
    }
}

/// Returns the time by the monotonic clock, in nanoseconds: `ktime_get()`.
pub(crate) fn now() -> u64 {
    // SAFETY: Nothing here runs in a non-maskable interrupt.
    let time = unsafe { kernel::bindings::ktime_get() };

    // Negative it never is.
    time.unsigned_abs()
}
