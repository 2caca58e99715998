// SPDX-License-Identifier: GPL-2.0

//! Work requests.

use super::{
    mr::MemoryRegion,
    Consumer,
    Opcode, //
};
use crate::bindings;
use kernel::prelude::*;

/// What an endpoint asks of its peer.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Request {
    Send,
    SendWithImmediate,
    Write,
    WriteWithImmediate,
    Read,
    CompareAndSwap,
    FetchAndAdd,
}

impl Request {
    /// Returns what the completion says that it was.
    pub(crate) const fn opcode(self) -> Opcode {
        match self {
            Self::Send | Self::SendWithImmediate => Opcode::SEND,
            Self::Write | Self::WriteWithImmediate => Opcode::RDMA_WRITE,
            Self::Read => Opcode::RDMA_READ,
            Self::CompareAndSwap => Opcode::COMP_SWAP,
            Self::FetchAndAdd => Opcode::FETCH_ADD,
        }
    }

    /// It takes immediate data along.
    pub(crate) const fn has_immediate(self) -> bool {
        matches!(self, Self::SendWithImmediate | Self::WriteWithImmediate)
    }

    /// It is executed by the target's device, on one word.
    pub(crate) const fn is_atomic(self) -> bool {
        matches!(self, Self::CompareAndSwap | Self::FetchAndAdd)
    }

    /// Returns what it has to be allowed to do to the peer's memory: `enum ib_access_flags`.
    pub(super) fn access(self) -> bindings::ib_access_flags {
        match self {
            Self::Send | Self::SendWithImmediate => 0,
            Self::Write | Self::WriteWithImmediate => {
                bindings::ib_access_flags_IB_ACCESS_REMOTE_WRITE
            }
            Self::Read => bindings::ib_access_flags_IB_ACCESS_REMOTE_READ,
            Self::CompareAndSwap | Self::FetchAndAdd => {
                bindings::ib_access_flags_IB_ACCESS_REMOTE_ATOMIC
            }
        }
    }

    fn wr_opcode(self) -> bindings::ib_wr_opcode {
        match self {
            Self::Send => bindings::ib_wr_opcode_IB_WR_SEND,
            Self::SendWithImmediate => bindings::ib_wr_opcode_IB_WR_SEND_WITH_IMM,
            Self::Write => bindings::ib_wr_opcode_IB_WR_RDMA_WRITE,
            Self::WriteWithImmediate => bindings::ib_wr_opcode_IB_WR_RDMA_WRITE_WITH_IMM,
            Self::Read => bindings::ib_wr_opcode_IB_WR_RDMA_READ,
            Self::CompareAndSwap => bindings::ib_wr_opcode_IB_WR_ATOMIC_CMP_AND_SWP,
            Self::FetchAndAdd => bindings::ib_wr_opcode_IB_WR_ATOMIC_FETCH_AND_ADD,
        }
    }
}

/// Where the data of a work request is at the peer: an address, and the key that opens it.
#[derive(Clone, Copy, Default)]
pub(super) struct Remote {
    pub(super) address: u64,
    pub(super) key: u32,
}

impl Remote {
    /// Returns where something is in a peer's memory region, as it was registered last.
    pub(super) fn of<C: Consumer>(region: &MemoryRegion<'_, C>, offset: usize) -> Self {
        Self {
            address: region.address().wrapping_add(offset as u64),
            key: region.rkey(),
        }
    }
}

/// A work request for the send queue, of whichever kind: each begins with a `struct ib_send_wr`.
#[repr(C)]
#[derive(Clone, Copy)]
union SendWr {
    send: bindings::ib_send_wr,
    rdma: bindings::ib_rdma_wr,
    atomic: bindings::ib_atomic_wr,
    reg: bindings::ib_reg_wr,
}

/// A work request for the send queue, with the piece of memory that it is about.
pub(super) struct SendRequest {
    wr: SendWr,
    sge: bindings::ib_sge,
}

impl SendRequest {
    /// Makes one that is nothing yet.
    pub(super) fn new() -> Self {
        Self {
            wr: SendWr {
                send: pin_init::zeroed(),
            },
            sge: pin_init::zeroed(),
        }
    }

    /// Makes it one about data at the peer, or for it. A request without data has no piece of memory.
    pub(super) fn set(
        &mut self,
        request: Request,
        cqe: *mut bindings::ib_cqe,
        sge: bindings::ib_sge,
        remote: Remote,
    ) {
        let mut wr = signalled(request.wr_opcode(), cqe);

        self.sge = sge;

        if sge.length > 0
            && !(cfg!(krdma_smoke_bug = "nothing-written") && request == Request::Write)
        {
            wr.sg_list = &mut self.sge;
            wr.num_sge = 1;
        }

        match request {
            Request::CompareAndSwap | Request::FetchAndAdd => {
                self.wr.atomic = bindings::ib_atomic_wr {
                    wr,
                    remote_addr: remote.address,
                    rkey: remote.key,
                    ..pin_init::zeroed()
                };
            }
            _ => {
                self.wr.rdma = bindings::ib_rdma_wr {
                    wr,
                    remote_addr: remote.address,
                    rkey: remote.key,
                };
            }
        }
    }

    /// Makes it one that opens a memory region to the peer, under a new key.
    pub(super) fn set_registration<C: Consumer>(
        &mut self,
        cqe: *mut bindings::ib_cqe,
        region: &mut MemoryRegion<'_, C>,
        access: bindings::ib_access_flags,
    ) {
        region.rotate_key();
        self.wr.reg = bindings::ib_reg_wr {
            wr: signalled(bindings::ib_wr_opcode_IB_WR_REG_MR, cqe),
            mr: region.as_raw(),
            key: region.rkey(),
            access: access as c_int,
        };
    }

    /// Makes it one that closes a memory region.
    pub(super) fn set_invalidation<C: Consumer>(
        &mut self,
        cqe: *mut bindings::ib_cqe,
        region: &MemoryRegion<'_, C>,
    ) {
        let mut wr = signalled(bindings::ib_wr_opcode_IB_WR_LOCAL_INV, cqe);

        wr.ex.invalidate_rkey = region.rkey();
        self.wr.send = wr;
    }

    /// Sets the immediate data.
    pub(super) fn set_immediate(&mut self, immediate: u32) {
        self.wr.send.ex.imm_data = immediate.to_be();
    }

    /// Sets the operands of an atomic operation.
    pub(super) fn set_operands(&mut self, (compare_add, swap): (u64, u64)) {
        self.wr.atomic.compare_add = compare_add;
        self.wr.atomic.swap = swap;
    }

    /// Changes the key of a read or a write to one that opens nothing.
    pub(super) fn falsify_key(&mut self) {
        // SAFETY: Any bytes are an integer.
        self.wr.rdma.rkey = !unsafe { self.wr.rdma.rkey };
    }

    /// Links it in front of another one, or of none.
    pub(super) fn link(&mut self, next: *mut bindings::ib_send_wr) {
        self.wr.send.next = next;
    }

    /// Returns the `struct ib_send_wr`.
    pub(super) fn as_raw(&mut self) -> *mut bindings::ib_send_wr {
        (&raw mut self.wr).cast()
    }
}

/// Returns what each kind of request begins with; it makes a completion.
fn signalled(opcode: bindings::ib_wr_opcode, cqe: *mut bindings::ib_cqe) -> bindings::ib_send_wr {
    let mut wr = bindings::ib_send_wr {
        opcode,
        send_flags: bindings::ib_send_flags_IB_SEND_SIGNALED as c_int,
        ..pin_init::zeroed()
    };

    wr.__bindgen_anon_1.wr_cqe = cqe;
    wr
}

/// A work request for the receive queue, with the piece of memory that it is about.
pub(super) struct ReceiveRequest {
    wr: bindings::ib_recv_wr,
    sge: bindings::ib_sge,
}

impl ReceiveRequest {
    /// Makes one that is nothing yet.
    pub(super) fn new() -> Self {
        Self {
            wr: pin_init::zeroed(),
            sge: pin_init::zeroed(),
        }
    }

    /// Sets where a message is to be put. A request for one without data has no piece of memory.
    pub(super) fn set(&mut self, cqe: *mut bindings::ib_cqe, sge: bindings::ib_sge) {
        self.wr = pin_init::zeroed();
        self.wr.__bindgen_anon_1.wr_cqe = cqe;
        self.sge = sge;

        if sge.length > 0 {
            self.wr.sg_list = &mut self.sge;
            self.wr.num_sge = 1;
        }
    }

    /// Links it in front of another one, or of none.
    pub(super) fn link(&mut self, next: *mut bindings::ib_recv_wr) {
        self.wr.next = next;
    }

    /// Returns the `struct ib_recv_wr`.
    pub(super) fn as_raw(&mut self) -> *mut bindings::ib_recv_wr {
        &mut self.wr
    }
}
