// SPDX-License-Identifier: GPL-2.0

//! Completion queues.

use super::{
    destroyed,
    Consumer,
    Device,
    Event, //
};
use crate::bindings;
use core::{
    marker::PhantomData,
    ptr::{
        null_mut,
        NonNull, //
    },
};
use kernel::{
    error::from_err_ptr,
    prelude::*,
    str::as_char_ptr_in_const_context, //
};

/// What a completion queue is to be like: `struct ib_cq_init_attr`.
pub(crate) struct CompletionQueueAttributes {
    /// How many completions it holds at least; not 0.
    pub(crate) entries: u32,
    /// The completion vector, by which drivers choose the interrupt: below
    /// `ib_device.num_comp_vectors`.
    pub(crate) vector: u32,
}

/// A completion queue with handlers of its own.
///
/// Destroyed when dropped, by `ib_destroy_cq_user()`.
///
/// The queue cannot be drained (`ib_drain_qp()` wants one of `__ib_alloc_cq()`), so no work may be
/// posted for it; it can show that a device has working completion queues.
///
/// # Invariants
///
/// `ptr` is a completion queue that `__ib_create_cq()` returned for a [`Device<'d>`] and that
/// nobody else destroys.
pub(crate) struct CompletionQueue<'d, C: Consumer> {
    ptr: NonNull<bindings::ib_cq>,
    _device: PhantomData<(Device<'d>, C)>,
}

// SAFETY: `ib_core` lets a completion queue be used and destroyed by any thread
// (Documentation/infiniband/core_locking.rst, "Reentrancy"). No `C` is stored.
unsafe impl<C: Consumer> Send for CompletionQueue<'_, C> {}

impl<'d, C: Consumer> CompletionQueue<'d, C> {
    /// Creates a completion queue by `__ib_create_cq()`. May sleep.
    ///
    /// # Errors
    ///
    /// `EINVAL` if the device cannot have a queue like that, `ENOMEM`, or what the device's driver
    /// says.
    pub(crate) fn create(
        device: Device<'d>,
        attributes: &CompletionQueueAttributes,
    ) -> Result<Self> {
        // `ib_core` warns with a backtrace about a queue with no entries, and leaves the vector to
        // its callers.
        if attributes.entries == 0 || attributes.vector >= device.completion_vectors() {
            return Err(EINVAL);
        }

        let attributes = bindings::ib_cq_init_attr {
            cqe: attributes.entries,
            comp_vector: attributes.vector,
            flags: 0,
        };

        // SAFETY: The device is valid by its type invariant. The attributes are read during the
        // call only. The handlers are of the types that C declares and take no context. They and
        // the name, whose pointer `rdma_restrack_set_name()` keeps, last as long as the module, as
        // does the queue (see `destroyed()`).
        let ptr = from_err_ptr(unsafe {
            bindings::__ib_create_cq(
                device.as_raw(),
                Some(Self::completion_callback),
                Some(Self::event_callback),
                null_mut(),
                &attributes,
                as_char_ptr_in_const_context(C::NAME),
            )
        })?;

        // INVARIANT: `__ib_create_cq()` succeeded, and the pointer goes nowhere else.
        Ok(Self {
            ptr: NonNull::new(ptr).ok_or(ENOMEM)?,
            _device: PhantomData,
        })
    }

    /// Returns the `struct ib_cq`.
    pub(super) fn as_raw(&self) -> *mut bindings::ib_cq {
        self.ptr.as_ptr()
    }

    /// `ib_comp_handler`.
    extern "C" fn completion_callback(_cq: *mut bindings::ib_cq, _context: *mut c_void) {
        C::completion();
    }

    /// `ib_cq.event_handler`.
    ///
    /// # Safety
    ///
    /// `event` must be valid for the call.
    unsafe extern "C" fn event_callback(event: *mut bindings::ib_event, _context: *mut c_void) {
        // SAFETY: By the safety requirement.
        C::cq_event(unsafe { Event::from_raw(event) });
    }
}

impl<C: Consumer> Drop for CompletionQueue<'_, C> {
    fn drop(&mut self) {
        // SAFETY: By the type invariant this is the only call for this queue, and the device is
        // still there. Queue pairs own their completion queue, so none uses it any more. No user
        // data goes with a kernel object.
        let ret = unsafe { bindings::ib_destroy_cq_user(self.as_raw(), null_mut()) };

        destroyed::<C>("ib_destroy_cq", ret);
    }
}

/// Who takes completions from a queue, and calls what is to be done for them.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum PollContext {
    /// [`PolledCompletionQueue::process()`], on the spot: `IB_POLL_DIRECT`.
    Direct,
    /// A work item that an interrupt queues: `IB_POLL_WORKQUEUE`.
    Workqueue,
}

/// A completion queue that `ib_core` takes completions from, for each of which it calls the function
/// that its work request names (`struct ib_cqe`).
///
/// Freed when dropped, by `ib_free_cq()`.
///
/// # Invariants
///
/// `ptr` is a completion queue that `__ib_alloc_cq()` returned for a [`Device<'d>`] and that nobody
/// else frees, with the poll context `context`.
pub(crate) struct PolledCompletionQueue<'d, C: Consumer> {
    ptr: NonNull<bindings::ib_cq>,
    context: PollContext,
    _device: PhantomData<(Device<'d>, C)>,
}

impl<'d, C: Consumer> PolledCompletionQueue<'d, C> {
    /// Allocates a completion queue by `__ib_alloc_cq()`. May sleep.
    ///
    /// # Errors
    ///
    /// As [`CompletionQueue::create()`].
    pub(crate) fn allocate(
        device: Device<'d>,
        attributes: &CompletionQueueAttributes,
        context: PollContext,
    ) -> Result<Self> {
        let entries = c_int::try_from(attributes.entries).map_err(|_| EINVAL)?;
        let vector = c_int::try_from(attributes.vector).map_err(|_| EINVAL)?;

        if entries == 0 || attributes.vector >= device.completion_vectors() {
            return Err(EINVAL);
        }

        // SAFETY: The device is valid by its type invariant. The name, whose pointer
        // `rdma_restrack_set_name()` keeps, lasts as long as the module, as does the queue.
        let ptr = from_err_ptr(unsafe {
            bindings::__ib_alloc_cq(
                device.as_raw(),
                null_mut(),
                entries,
                vector,
                match context {
                    PollContext::Direct => bindings::ib_poll_context_IB_POLL_DIRECT,
                    PollContext::Workqueue => bindings::ib_poll_context_IB_POLL_WORKQUEUE,
                },
                as_char_ptr_in_const_context(C::NAME),
            )
        })?;

        // INVARIANT: `__ib_alloc_cq()` succeeded, and the pointer goes nowhere else.
        Ok(Self {
            ptr: NonNull::new(ptr).ok_or(ENOMEM)?,
            context,
            _device: PhantomData,
        })
    }

    /// Returns the `struct ib_cq`.
    pub(super) fn as_raw(&self) -> *mut bindings::ib_cq {
        self.ptr.as_ptr()
    }

    /// Returns who takes completions from it.
    pub(super) fn context(&self) -> PollContext {
        self.context
    }

    /// Takes a few completions from the queue, if there are any: `ib_process_cq_direct()`. None from
    /// one of another context, where others do so at the same time.
    pub(super) fn process(&self) {
        if self.context == PollContext::Direct {
            // SAFETY: The queue is valid by the type invariant. What C calls is what the work
            // requests name that were posted.
            unsafe { bindings::ib_process_cq_direct(self.ptr.as_ptr(), Self::BUDGET) };
        }
    }

    /// `IB_POLL_BATCH_DIRECT`: as many as C takes from the queue at a time.
    const BUDGET: c_int = 8;
}

impl<C: Consumer> Drop for PolledCompletionQueue<'_, C> {
    fn drop(&mut self) {
        // SAFETY: By the type invariant this is the only call for this queue, and the device is
        // still there. Queue pairs own their completion queue, so none uses it any more.
        unsafe { bindings::ib_free_cq(self.ptr.as_ptr()) };
    }
}
