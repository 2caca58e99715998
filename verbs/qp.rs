// SPDX-License-Identifier: GPL-2.0

//! Queue pairs.

use super::{
    destroyed,
    to_result,
    Address,
    CompletionQueue,
    Consumer,
    Event,
    PolledCompletionQueue,
    Port,
    ProtectionDomain, //
};
use crate::bindings;
use core::{
    mem::ManuallyDrop,
    ptr::{
        null,
        null_mut,
        NonNull, //
    },
};
use kernel::{
    alloc::KVVec,
    error::from_err_ptr,
    fmt,
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

/// Returns the attributes for queue pairs that have a completion queue serve both directions.
///
/// No data is inlined, and a send work request makes a completion only where it asks for one
/// (`IB_SIGNAL_REQ_WR`).
fn init_attributes<C: Consumer>(
    cq: *mut bindings::ib_cq,
    attributes: &QueuePairAttributes,
) -> bindings::ib_qp_init_attr {
    bindings::ib_qp_init_attr {
        event_handler: Some(event_callback::<C>),
        send_cq: cq,
        recv_cq: cq,
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
        ..pin_init::zeroed()
    }
}

/// Creates a reliable-connected queue pair by `ib_create_qp_kernel()`. May sleep.
///
/// # Safety
///
/// The protection domain must be valid, the attributes those of [`init_attributes()`] for a valid
/// completion queue of the same device, and both must outlive the queue pair.
///
/// # Errors
///
/// `EINVAL` if the device cannot have a queue pair like that, `ENOMEM`, or what the device's driver
/// says.
unsafe fn create<C: Consumer>(
    pd: *mut bindings::ib_pd,
    attributes: &mut bindings::ib_qp_init_attr,
) -> Result<NonNull<bindings::ib_qp>> {
    // SAFETY: By the safety requirement. The attributes are used during the call only, in which C
    // may round up what they say. The handler is of the type that C declares and takes no context.
    // It and the name, whose pointer `rdma_restrack_set_name()` keeps, last as long as the module,
    // as does the queue pair (see `destroyed()`).
    let ptr = from_err_ptr(unsafe {
        bindings::ib_create_qp_kernel(pd, attributes, as_char_ptr_in_const_context(C::NAME))
    })?;

    NonNull::new(ptr).ok_or(ENOMEM)
}

/// Destroys a queue pair by `ib_destroy_qp_user()`; returns what that says. May sleep.
///
/// # Safety
///
/// It must be a valid queue pair of a kernel object's, which nobody uses after this.
unsafe fn destroy(ptr: NonNull<bindings::ib_qp>) -> c_int {
    // SAFETY: By the safety requirement. No user data goes with a kernel object.
    unsafe { bindings::ib_destroy_qp_user(ptr.as_ptr(), null_mut()) }
}

/// The first packet's number, on either side: any will do on a connection that is new, between
/// queue pairs that are.
const PACKET_SEQUENCE_NUMBER: u32 = 0;

/// How long to wait for an acknowledgement: 4.096 µs times two to the power of this, 0.5 s.
const ACK_TIMEOUT: u8 = 17;

/// How often a packet is sent again that was not acknowledged. Not the most that there is, 7:
/// soft-RoCE takes that for without end (`rxe_completer()`).
const RETRIES: u8 = 6;

/// How often a message is sent again for which no receive was posted. Not without end, 7: receives
/// are posted first, and one that is lost is to be told from a completion that is.
const RNR_RETRIES: u8 = 6;

/// How long the peer is to wait before that: 0.64 ms, by the table of the specification.
const RNR_TIMER: u8 = 12;

/// Connects a queue pair, which must be in `RESET`, to that of a peer: `INIT`, `RTR`, `RTS`, by
/// `ib_modify_qp()`. May sleep.
///
/// # Safety
///
/// It must be valid, and the port `here` of its device.
///
/// # Errors
///
/// `EINVAL`, or what the device's driver says; the queue pair is good for nothing then.
unsafe fn connect(
    ptr: NonNull<bindings::ib_qp>,
    (port, from): &(Port<'_>, Address),
    (peer_port, to): &(Port<'_>, Address),
    peer_number: u32,
    attributes: &ConnectionAttributes,
) -> Result {
    use bindings::*;

    // SAFETY: By the safety requirement.
    unsafe {
        modify(
            ptr,
            ib_qp_attr {
                qp_state: ib_qp_state_IB_QPS_INIT,
                pkey_index: 0,
                port_num: port.number(),
                qp_access_flags: attributes.access as c_int,
                ..pin_init::zeroed()
            },
            ib_qp_attr_mask_IB_QP_STATE
                | ib_qp_attr_mask_IB_QP_PKEY_INDEX
                | ib_qp_attr_mask_IB_QP_PORT
                | ib_qp_attr_mask_IB_QP_ACCESS_FLAGS,
        )
    }?;

    // SAFETY: As above.
    unsafe {
        modify(
            ptr,
            ib_qp_attr {
                qp_state: ib_qp_state_IB_QPS_RTR,
                ah_attr: port.path(from, to),
                path_mtu: port.mtu_code().min(peer_port.mtu_code()),
                dest_qp_num: peer_number,
                rq_psn: PACKET_SEQUENCE_NUMBER,
                max_dest_rd_atomic: attributes.incoming_reads,
                min_rnr_timer: RNR_TIMER,
                ..pin_init::zeroed()
            },
            ib_qp_attr_mask_IB_QP_STATE
                | ib_qp_attr_mask_IB_QP_AV
                | ib_qp_attr_mask_IB_QP_PATH_MTU
                | ib_qp_attr_mask_IB_QP_DEST_QPN
                | ib_qp_attr_mask_IB_QP_RQ_PSN
                | ib_qp_attr_mask_IB_QP_MAX_DEST_RD_ATOMIC
                | ib_qp_attr_mask_IB_QP_MIN_RNR_TIMER,
        )
    }?;

    // SAFETY: As above.
    unsafe {
        modify(
            ptr,
            ib_qp_attr {
                qp_state: ib_qp_state_IB_QPS_RTS,
                sq_psn: PACKET_SEQUENCE_NUMBER,
                timeout: ACK_TIMEOUT,
                retry_cnt: RETRIES,
                rnr_retry: RNR_RETRIES,
                max_rd_atomic: attributes.outstanding_reads,
                ..pin_init::zeroed()
            },
            ib_qp_attr_mask_IB_QP_STATE
                | ib_qp_attr_mask_IB_QP_SQ_PSN
                | ib_qp_attr_mask_IB_QP_TIMEOUT
                | ib_qp_attr_mask_IB_QP_RETRY_CNT
                | ib_qp_attr_mask_IB_QP_RNR_RETRY
                | ib_qp_attr_mask_IB_QP_MAX_QP_RD_ATOMIC,
        )
    }
}

/// Changes attributes by `ib_modify_qp()`. May sleep.
///
/// # Safety
///
/// The queue pair must be valid.
unsafe fn modify(
    ptr: NonNull<bindings::ib_qp>,
    mut attributes: bindings::ib_qp_attr,
    mask: bindings::ib_qp_attr_mask,
) -> Result {
    // SAFETY: By the safety requirement. The attributes, of which C takes those that the mask has,
    // are used during the call only.
    to_result(unsafe { bindings::ib_modify_qp(ptr.as_ptr(), &mut attributes, mask as c_int) })
}

/// `ib_qp_init_attr.event_handler`.
///
/// # Safety
///
/// `event` must be valid for the call.
unsafe extern "C" fn event_callback<C: Consumer>(
    event: *mut bindings::ib_event,
    _context: *mut c_void,
) {
    // SAFETY: By the safety requirement.
    C::qp_event(unsafe { Event::from_raw(event) });
}

/// Room for [`QueuePairs`], to be had before there is something that would have to be undone.
pub(crate) struct Room(KVVec<NonNull<bindings::ib_qp>>);

impl Room {
    /// Allocates room for `count` of them, at least.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn new(count: usize) -> Result<Self> {
        Ok(Self(KVVec::with_capacity(count, GFP_KERNEL)?))
    }
}

/// Reliable-connected queue pairs that share a completion queue and a protection domain.
///
/// Nothing can be posted to them: their completion queue cannot be drained. That a device has them
/// shows that it can have as many.
///
/// Destroyed when dropped, by `ib_destroy_qp_user()`; then the completion queue goes, then the
/// protection domain.
///
/// # Invariants
///
/// `qps` are queue pairs that `ib_create_qp_kernel()` returned and that nobody else destroys. They
/// use `cq` for both directions, and `pd`.
pub(crate) struct QueuePairs<'d, C: Consumer> {
    qps: KVVec<NonNull<bindings::ib_qp>>,
    cq: ManuallyDrop<CompletionQueue<'d, C>>,
    pd: ManuallyDrop<ProtectionDomain<'d, C>>,
}

// SAFETY: `ib_core` lets a queue pair be used and destroyed by any thread
// (Documentation/infiniband/core_locking.rst, "Reentrancy"). `cq` and `pd` are `Send` themselves.
unsafe impl<C: Consumer> Send for QueuePairs<'_, C> {}

impl<'d, C: Consumer> QueuePairs<'d, C> {
    /// Has a completion queue and a protection domain be shared, by none as yet.
    pub(crate) fn new(
        Room(qps): Room,
        pd: ProtectionDomain<'d, C>,
        cq: CompletionQueue<'d, C>,
    ) -> Self {
        // INVARIANT: There are none, as only this module can put some into the room.
        Self {
            qps,
            cq: ManuallyDrop::new(cq),
            pd: ManuallyDrop::new(pd),
        }
    }

    /// Creates queue pairs by `ib_create_qp_kernel()` until there are `count`. May sleep.
    ///
    /// # Errors
    ///
    /// `EINVAL` if the device cannot have a queue pair like that, `ENOMEM`, also if there is no room
    /// for as many, or what the device's driver says; those that there are stay.
    // By itself, as the attributes would be on the stack all the time in its callers.
    #[inline(never)]
    pub(crate) fn create(&mut self, count: usize, attributes: &QueuePairAttributes) -> Result {
        let wanted = init_attributes::<C>(self.cq.as_raw(), attributes);

        if self.qps.capacity() < count {
            return Err(ENOMEM);
        }

        while self.qps.len() < count {
            // Drivers may change them, such as by rounding up.
            let mut attributes = wanted;

            // SAFETY: Both are valid by their type invariants, of one device since they have the
            // same brand, and outlive the queue pair: `Drop` sees to that.
            let ptr = unsafe { create::<C>(self.pd.as_raw(), &mut attributes) }?;

            // INVARIANT: It was created with `cq` and `pd`, and goes nowhere else. There is room.
            self.qps.push_within_capacity(ptr)?;
        }

        Ok(())
    }

    /// Returns how many there are.
    pub(crate) fn len(&self) -> usize {
        self.qps.len()
    }

    /// Returns the number of one of them, by which a peer addresses it.
    pub(crate) fn number(&self, index: usize) -> Option<u32> {
        let ptr = self.qps.get(index)?;

        // SAFETY: The queue pair is valid by the type invariant. Drivers set its number before
        // `ib_create_qp_kernel()` returns, and it does not change.
        Some(unsafe { (*ptr.as_ptr()).qp_num })
    }

    /// Connects one of them, which must be in `RESET`, to the one of the same index of a peer, by
    /// `ib_modify_qp()`. May sleep.
    ///
    /// # Errors
    ///
    /// `EINVAL`, also if there is none on either side, or what the device's driver says.
    pub(crate) fn connect(
        &mut self,
        index: usize,
        here: &(Port<'d>, Address),
        there: &(Port<'_>, Address),
        peer: &QueuePairs<'_, C>,
    ) -> Result {
        let ptr = *self.qps.get(index).ok_or(EINVAL)?;
        let peer_number = peer.number(index).ok_or(EINVAL)?;

        // SAFETY: The queue pair is valid by the type invariant, and the port of the same device, as
        // it has the same brand.
        unsafe { connect(ptr, here, there, peer_number, &ConnectionAttributes::UNUSED) }
    }
}

impl<C: Consumer> Drop for QueuePairs<'_, C> {
    fn drop(&mut self) {
        let mut first_error = 0;

        for ptr in self.qps.iter() {
            // SAFETY: By the type invariant this is the only call for this queue pair, and the
            // device is still there.
            let ret = unsafe { destroy(*ptr) };

            if first_error == 0 {
                first_error = ret;
            }
        }

        // One that could not be destroyed goes on using the other two: they are leaked with it.
        if self.qps.is_empty() || destroyed::<C>("ib_destroy_qp", first_error) {
            // SAFETY: Nobody uses the fields after this, and this is the only place that drops
            // them.
            unsafe {
                ManuallyDrop::drop(&mut self.cq);
                ManuallyDrop::drop(&mut self.pd);
            }
        }
    }
}

/// A reliable-connected queue pair that can be connected.
///
/// Work that was posted to it is drained before it is destroyed. Destroyed when dropped, by
/// `ib_destroy_qp_user()`; then its completion queue goes, then its protection domain.
///
/// # Invariants
///
/// - `ptr` is a queue pair that `ib_create_qp_kernel()` returned and that nobody else destroys.
/// - It uses `cq` for both directions, and `pd`.
/// - If it `is_connected`, it has left the state `RESET`.
/// - If it is not `is_drained`, it has left `RESET`; else nothing that was posted is outstanding, as
///   far as `ib_drain_qp()` can tell: of a device that fails it only warns.
pub(super) struct QueuePair<'d, C: Consumer> {
    ptr: NonNull<bindings::ib_qp>,
    is_connected: bool,
    is_drained: bool,
    cq: ManuallyDrop<PolledCompletionQueue<'d, C>>,
    pd: ManuallyDrop<ProtectionDomain<'d, C>>,
}

/// How a queue pair is to work with its peer, beside the path.
pub(super) struct ConnectionAttributes {
    /// How many reads and atomic operations it may have on their way.
    pub(super) outstanding_reads: u8,
    /// How many of its peer's it works at.
    pub(super) incoming_reads: u8,
    /// What the peer may do to memory that is registered for it: `enum ib_access_flags`.
    pub(super) access: bindings::ib_access_flags,
}

impl ConnectionAttributes {
    /// Where nothing is posted.
    const UNUSED: Self = Self {
        outstanding_reads: 0,
        incoming_reads: 0,
        access: 0,
    };
}

impl<'d, C: Consumer> QueuePair<'d, C> {
    /// Creates a queue pair by `ib_create_qp_kernel()`. May sleep.
    ///
    /// # Errors
    ///
    /// `EINVAL` if the device cannot have a queue pair like that, `ENOMEM`, or what the device's
    /// driver says; the completion queue and the protection domain are gone.
    pub(super) fn create(
        pd: ProtectionDomain<'d, C>,
        cq: PolledCompletionQueue<'d, C>,
        attributes: &QueuePairAttributes,
    ) -> Result<Self> {
        let mut attributes = init_attributes::<C>(cq.as_raw(), attributes);

        // SAFETY: Both are valid by their type invariants, of one device since they have the same
        // brand, and outlive the queue pair, which owns them.
        let ptr = unsafe { create::<C>(pd.as_raw(), &mut attributes) }?;

        // INVARIANT: It was created with `cq` and `pd`, and goes nowhere else.
        Ok(Self {
            ptr,
            is_connected: false,
            is_drained: true,
            cq: ManuallyDrop::new(cq),
            pd: ManuallyDrop::new(pd),
        })
    }

    /// Returns the queue pair number, by which a peer addresses it.
    pub(super) fn number(&self) -> u32 {
        // SAFETY: The queue pair is valid by the type invariant. Drivers set its number before
        // `ib_create_qp_kernel()` returns, and it does not change.
        unsafe { (*self.ptr.as_ptr()).qp_num }
    }

    /// Puts the queue pair into the state `ERR` and waits until everything that was posted has
    /// completed: `ib_drain_qp()`. May sleep.
    ///
    /// Does nothing if there is nothing to wait for: from `RESET` there is no way to `ERR`.
    pub(super) fn drain(&mut self) {
        if !self.is_drained {
            // SAFETY: By the type invariants the queue pair is valid, has left `RESET`, and has a
            // completion queue of `__ib_alloc_cq()`. Nobody else posts to it, as this borrows it.
            // Whoever posted has left room for one more in each of the queues.
            unsafe { bindings::ib_drain_qp(self.ptr.as_ptr()) };
            // INVARIANT: It has been drained.
            self.is_drained = true;
        }
    }

    /// Connects the queue pair, which must be in `RESET`, to that of a peer: `INIT`, `RTR`, `RTS`, by
    /// `ib_modify_qp()`. May sleep.
    ///
    /// # Errors
    ///
    /// `EINVAL`, or what the device's driver says; the queue pair is good for nothing then.
    pub(super) fn connect(
        &mut self,
        here: &(Port<'d>, Address),
        there: &(Port<'_>, Address),
        peer_number: u32,
        attributes: &ConnectionAttributes,
    ) -> Result {
        // SAFETY: The queue pair is valid by the type invariant, and the port of the same device, as
        // it has the same brand.
        unsafe { connect(self.ptr, here, there, peer_number, attributes) }?;
        // INVARIANT: It is in `RTS`.
        self.is_connected = true;

        Ok(())
    }

    /// Returns the state, by `ib_query_qp()`. May sleep.
    pub(super) fn state(&self) -> Result<State> {
        let mut attributes = pin_init::zeroed::<bindings::ib_qp_attr>();
        let mut init_attributes = pin_init::zeroed::<bindings::ib_qp_init_attr>();

        // SAFETY: The queue pair is valid by the type invariant. C writes to both during the call
        // only.
        to_result(unsafe {
            bindings::ib_query_qp(
                self.ptr.as_ptr(),
                &mut attributes,
                bindings::ib_qp_attr_mask_IB_QP_STATE as c_int,
                &mut init_attributes,
            )
        })?;

        Ok(State(attributes.qp_state))
    }

    /// Posts a list of work requests to the send queue: `ib_post_send()`.
    ///
    /// # Safety
    ///
    /// Each of them must be valid for the call, what it refers to until it has completed, and its
    /// `wr_cqe` must be right for it. In both queues and in the completion queue there must be room
    /// for one more, to be drained with.
    ///
    /// # Errors
    ///
    /// `EINVAL` in the state `RESET`, or what the device's driver says, such as `ENOMEM` if the queue
    /// is full. Those before the bad one have been posted.
    pub(super) unsafe fn post_send(&mut self, first: *mut bindings::ib_send_wr) -> Result {
        let mut bad = null();

        self.prepare_to_post()?;

        // SAFETY: The queue pair and its device are valid by the type invariant; drivers have this
        // function, which `ib_post_send()` calls in this way. The work requests are as they must be
        // by the safety requirement.
        to_result(unsafe {
            let qp = self.ptr.as_ptr();
            let post_send = (*(*qp).device).ops.post_send.ok_or(EINVAL)?;

            post_send(qp, first, &mut bad)
        })
    }

    /// Posts a list of work requests to the receive queue: `ib_post_recv()`.
    ///
    /// # Safety
    ///
    /// As [`Self::post_send()`].
    ///
    /// # Errors
    ///
    /// As [`Self::post_send()`].
    pub(super) unsafe fn post_receive(&mut self, first: *mut bindings::ib_recv_wr) -> Result {
        let mut bad = null();

        self.prepare_to_post()?;

        // SAFETY: As in `post_send()`.
        to_result(unsafe {
            let qp = self.ptr.as_ptr();
            let post_recv = (*(*qp).device).ops.post_recv.ok_or(EINVAL)?;

            post_recv(qp, first, &mut bad)
        })
    }

    /// Puts the queue pair into the state `ERR`: whatever is outstanding completes soon. May sleep.
    ///
    /// # Errors
    ///
    /// `EINVAL` if nothing was posted that has not been drained, or what the device's driver says.
    pub(super) fn flush(&mut self) -> Result {
        if self.is_drained {
            return Err(EINVAL);
        }

        // SAFETY: The queue pair is valid by the type invariant.
        unsafe {
            modify(
                self.ptr,
                bindings::ib_qp_attr {
                    qp_state: bindings::ib_qp_state_IB_QPS_ERR,
                    ..pin_init::zeroed()
                },
                bindings::ib_qp_attr_mask_IB_QP_STATE,
            )
        }
    }

    /// Takes note that there is nothing to be drained.
    ///
    /// # Safety
    ///
    /// Everything that was posted must have completed.
    pub(super) unsafe fn set_drained(&mut self) {
        // INVARIANT: By the safety requirement.
        self.is_drained = true;
    }

    fn prepare_to_post(&mut self) -> Result {
        if !self.is_connected {
            return Err(EINVAL);
        }

        self.is_drained = false;
        Ok(())
    }

    /// Returns the completion queue.
    pub(super) fn cq(&self) -> &PolledCompletionQueue<'d, C> {
        &self.cq
    }

    /// Returns the protection domain.
    pub(super) fn pd(&self) -> &ProtectionDomain<'d, C> {
        &self.pd
    }

    /// Returns the `struct ib_qp`.
    pub(super) fn as_raw(&self) -> *mut bindings::ib_qp {
        self.ptr.as_ptr()
    }
}

impl<'d, C: Consumer> QueuePair<'d, C> {
    /// Destroys the queue pair and its completion queue, as dropping it does; returns its protection
    /// domain, or `None` if the device keeps the queue pair. May sleep.
    pub(super) fn destroy(self) -> Option<ProtectionDomain<'d, C>> {
        ManuallyDrop::new(self).destroy_in_place()
    }

    /// To be called once, by whoever does not use the queue pair any more.
    fn destroy_in_place(&mut self) -> Option<ProtectionDomain<'d, C>> {
        self.drain();

        // SAFETY: By the type invariant this is the only call for this queue pair, and the device
        // is still there.
        let ret = unsafe { destroy(self.ptr) };

        // A queue pair that could not be destroyed goes on using the other two: they are leaked
        // with it.
        if !destroyed::<C>("ib_destroy_qp", ret) {
            return None;
        }

        // SAFETY: Nobody uses the fields after this, and this is the only place that takes them.
        unsafe {
            ManuallyDrop::drop(&mut self.cq);

            Some(ManuallyDrop::take(&mut self.pd))
        }
    }
}

impl<C: Consumer> Drop for QueuePair<'_, C> {
    fn drop(&mut self) {
        self.destroy_in_place();
    }
}

/// The state of a queue pair: `enum ib_qp_state`.
///
/// Displayed as the specification has it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct State(bindings::ib_qp_state);

impl State {
    /// Something went wrong, and whatever is posted is flushed.
    pub(crate) const ERR: Self = Self(bindings::ib_qp_state_IB_QPS_ERR);
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            bindings::ib_qp_state_IB_QPS_RESET => "RESET",
            bindings::ib_qp_state_IB_QPS_INIT => "INIT",
            bindings::ib_qp_state_IB_QPS_RTR => "RTR",
            bindings::ib_qp_state_IB_QPS_RTS => "RTS",
            bindings::ib_qp_state_IB_QPS_SQD => "SQD",
            bindings::ib_qp_state_IB_QPS_SQE => "SQE",
            bindings::ib_qp_state_IB_QPS_ERR => "ERR",
            _ => "unknown",
        })
    }
}
