// SPDX-License-Identifier: GPL-2.0

//! Queue pairs.

use super::{
    destroyed,
    CompletionQueue,
    Consumer,
    Event,
    ProtectionDomain, //
};
use crate::bindings;
use core::{
    mem::ManuallyDrop,
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

/// How large a queue pair is to be: `struct ib_qp_cap`.
pub(crate) struct QueuePairAttributes {
    /// How many send work requests can be outstanding; not 0, which siw refuses.
    pub(crate) send_work_requests: u32,
    /// How many receive work requests can be outstanding.
    pub(crate) receive_work_requests: u32,
    /// How many pieces of memory a send work request can gather.
    pub(crate) send_sges: u32,
    /// How many pieces of memory a receive work request can scatter to.
    pub(crate) receive_sges: u32,
}

/// A queue pair could not be created: why, and what it was to be made of.
///
/// When this is dropped, `cq` goes first.
pub(crate) struct CreateError<'d, C: Consumer> {
    /// What `ib_create_qp_kernel()` says.
    pub(crate) error: Error,
    _cq: CompletionQueue<'d, C>,
    _pd: ProtectionDomain<'d, C>,
}

impl<C: Consumer> From<CreateError<'_, C>> for Error {
    fn from(from: CreateError<'_, C>) -> Self {
        from.error
    }
}

/// A reliable-connected queue pair, in the state `RESET`.
///
/// Destroyed when dropped, by `ib_destroy_qp_user()`; then its completion queue goes, then its
/// protection domain.
///
/// The queue pair never leaves `RESET`, where no work can be posted, so there is nothing to drain
/// before it is destroyed.
///
/// # Invariants
///
/// - `ptr` is a queue pair that `ib_create_qp_kernel()` returned and that nobody else destroys.
/// - It uses `cq` for both directions, and `pd`.
pub(crate) struct QueuePair<'d, C: Consumer> {
    ptr: NonNull<bindings::ib_qp>,
    cq: ManuallyDrop<CompletionQueue<'d, C>>,
    pd: ManuallyDrop<ProtectionDomain<'d, C>>,
}

// SAFETY: `ib_core` lets a queue pair be used and destroyed by any thread
// (Documentation/infiniband/core_locking.rst, "Reentrancy"). No `C` is stored.
unsafe impl<C: Consumer> Send for QueuePair<'_, C> {}

impl<'d, C: Consumer> QueuePair<'d, C> {
    /// Creates a reliable-connected queue pair by `ib_create_qp_kernel()`.
    ///
    /// The completion queue serves both directions. No data is inlined, and a send work request
    /// makes a completion only where it asks for one (`IB_SIGNAL_REQ_WR`). May sleep.
    ///
    /// # Errors
    ///
    /// `EINVAL` if the device cannot have a queue pair like that, `ENOMEM`, or what the device's
    /// driver says; the completion queue and the protection domain are in the error.
    pub(crate) fn create(
        pd: ProtectionDomain<'d, C>,
        cq: CompletionQueue<'d, C>,
        attributes: &QueuePairAttributes,
    ) -> Result<Self, CreateError<'d, C>> {
        let mut attributes = bindings::ib_qp_init_attr {
            event_handler: Some(Self::event_callback),
            send_cq: cq.as_raw(),
            recv_cq: cq.as_raw(),
            cap: bindings::ib_qp_cap {
                max_send_wr: attributes.send_work_requests,
                max_recv_wr: attributes.receive_work_requests,
                max_send_sge: attributes.send_sges,
                max_recv_sge: attributes.receive_sges,
                max_inline_data: 0,
                max_rdma_ctxs: 0,
            },
            sq_sig_type: bindings::ib_sig_type_IB_SIGNAL_REQ_WR,
            qp_type: bindings::ib_qp_type_IB_QPT_RC,
            ..Default::default()
        };

        // SAFETY: `pd` and `cq` are valid by their type invariants, belong to the same device since
        // they have the same brand, and outlive the queue pair, which owns them. The attributes are
        // used during the call only. The handler is of the type that C declares and takes no
        // context. It and the name, whose pointer `rdma_restrack_set_name()` keeps, last as long as
        // the module, as does the queue pair (see `destroyed()`).
        let ptr = from_err_ptr(unsafe {
            bindings::ib_create_qp_kernel(
                pd.as_raw(),
                &mut attributes,
                as_char_ptr_in_const_context(C::NAME),
            )
        });

        match ptr.and_then(|ptr| NonNull::new(ptr).ok_or(ENOMEM)) {
            // INVARIANT: `ib_create_qp_kernel()` succeeded with `cq` and `pd`, and the pointer goes
            // nowhere else.
            Ok(ptr) => Ok(Self {
                ptr,
                cq: ManuallyDrop::new(cq),
                pd: ManuallyDrop::new(pd),
            }),
            Err(error) => Err(CreateError {
                error,
                _cq: cq,
                _pd: pd,
            }),
        }
    }

    /// Returns the queue pair number, by which a peer addresses it.
    pub(crate) fn number(&self) -> u32 {
        // SAFETY: The queue pair is valid by the type invariant. Drivers set its number before
        // `ib_create_qp_kernel()` returns, and it does not change.
        unsafe { (*self.ptr.as_ptr()).qp_num }
    }

    /// `ib_qp_init_attr.event_handler`.
    ///
    /// # Safety
    ///
    /// `event` must be valid for the call.
    unsafe extern "C" fn event_callback(event: *mut bindings::ib_event, _context: *mut c_void) {
        // SAFETY: By the safety requirement.
        C::qp_event(unsafe { Event::from_raw(event) });
    }
}

impl<C: Consumer> Drop for QueuePair<'_, C> {
    fn drop(&mut self) {
        // SAFETY: By the type invariant this is the only call for this queue pair, and the device
        // is still there. No user data goes with a kernel object.
        let ret = unsafe { bindings::ib_destroy_qp_user(self.ptr.as_ptr(), null_mut()) };

        // A queue pair that could not be destroyed goes on using the other two: they are leaked
        // with it.
        if destroyed::<C>("ib_destroy_qp", ret) {
            // SAFETY: Nobody uses the fields after this, and this is the only place that drops
            // them.
            unsafe {
                ManuallyDrop::drop(&mut self.cq);
                ManuallyDrop::drop(&mut self.pd);
            }
        }
    }
}
