// SPDX-License-Identifier: GPL-2.0

//! Memory regions.

use super::{
    of,
    to_result,
    Buffer,
    CallError,
    Consumer,
    ProtectionDomain, //
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
    alloc::KVVec,
    error::from_err_ptr,
    page::PAGE_SIZE,
    prelude::*, //
};

/// A memory region for fast registration, of one or more buffers: a work request opens it to the
/// peer, and another closes it again.
///
/// Deregistered when dropped, by `ib_dereg_mr_user()`.
///
/// # Invariants
///
/// `ptr` is a memory region that `ib_alloc_mr()` returned for a protection domain that outlives it,
/// and that nobody else deregisters.
pub(super) struct MemoryRegion<'d, C: Consumer> {
    ptr: NonNull<bindings::ib_mr>,
    key: u8,
    _pd: PhantomData<ProtectionDomain<'d, C>>,
}

impl<'d, C: Consumer> MemoryRegion<'d, C> {
    /// `SG_END`, which bindgen cannot evaluate: the last entry of a list.
    const SG_END: c_ulong = 2;

    /// Allocates a memory region by `ib_alloc_mr()` and maps the buffers to it by `ib_map_mr_sg()`,
    /// one behind the other. May sleep.
    ///
    /// # Safety
    ///
    /// The protection domain and the buffers must outlive the memory region.
    ///
    /// # Errors
    ///
    /// `ENOMEM`, `EINVAL` if the device's driver cannot map as much, or what that says.
    pub(super) unsafe fn new(
        pd: &ProtectionDomain<'d, C>,
        buffers: &[Buffer<'d>],
    ) -> Result<Self, CallError> {
        let mut list =
            KVVec::with_capacity(buffers.len(), GFP_KERNEL).map_err(CallError::of_memory)?;
        let mut pages = 0u32;

        for buffer in buffers {
            let mut entry: kernel::bindings::scatterlist = pin_init::zeroed();

            // Drivers look at the addresses for the device only: coherent memory need not have a
            // `struct page`. No buffer is so large that its size would not fit.
            entry.length = u32::try_from(buffer.size()).map_err(CallError::of_memory)?;
            entry.dma_address = buffer.address();

            #[cfg(CONFIG_NEED_SG_DMA_LENGTH)]
            {
                entry.dma_length = entry.length;
            }

            pages = pages.saturating_add(entry.length / PAGE_SIZE as u32);
            list.push_within_capacity(entry)
                .map_err(CallError::of_memory)?;
        }

        let count = c_int::try_from(list.len()).map_err(CallError::of_memory)?;

        match list.last_mut() {
            Some(last) => last.page_link = Self::SG_END,
            None => return Err(of("ib_alloc_mr")(EINVAL)),
        }

        // SAFETY: The protection domain is valid by its type invariant.
        let ptr = from_err_ptr(unsafe {
            bindings::ib_alloc_mr(pd.as_raw(), bindings::ib_mr_type_IB_MR_TYPE_MEM_REG, pages)
        })
        .map_err(of("ib_alloc_mr"))?;

        // INVARIANT: `ib_alloc_mr()` succeeded, the pointer goes nowhere else, and by the safety
        // requirement the protection domain outlives this.
        let this = Self {
            ptr: NonNull::new(ptr).ok_or(ENOMEM).map_err(of("ib_alloc_mr"))?,
            key: 0,
            _pd: PhantomData,
        };

        // SAFETY: The region is valid by the type invariant. The list has as many entries, the last
        // of which says so, and is used during the call only.
        let mapped = unsafe {
            bindings::ib_map_mr_sg(
                ptr,
                list.as_mut_ptr().cast(),
                count,
                null_mut(),
                PAGE_SIZE as c_uint,
            )
        };

        match mapped {
            mapped if mapped == count => Ok(this),
            error if error < 0 => Err(Error::from_errno(error)),
            _ => Err(EINVAL),
        }
        .map_err(of("ib_map_mr_sg"))
    }

    /// Changes the part of the keys that consumers choose, so that keys of former registrations do
    /// not open this one: `ib_update_fast_reg_key()`.
    pub(super) fn rotate_key(&mut self) {
        self.key = self.key.wrapping_add(1);

        let mr = self.as_raw();

        // SAFETY: The region is valid by the type invariant, and its keys are for its owner to change
        // while it is not registered.
        unsafe {
            (*mr).lkey = ((*mr).lkey & !0xff) | u32::from(self.key);
            (*mr).rkey = ((*mr).rkey & !0xff) | u32::from(self.key);
        }
    }

    /// Returns the `struct ib_mr`.
    pub(super) fn as_raw(&self) -> *mut bindings::ib_mr {
        self.ptr.as_ptr()
    }

    /// Returns the key by which the peer accesses the region.
    pub(super) fn rkey(&self) -> u32 {
        // SAFETY: The region is valid by the type invariant.
        unsafe { (*self.as_raw()).rkey }
    }

    /// Returns the address by which the peer accesses the region's first buffer; that of the next
    /// one is larger by the size of the first, and so on.
    pub(super) fn address(&self) -> u64 {
        // SAFETY: The region is valid by the type invariant.
        unsafe { (*self.as_raw()).iova }
    }
}

impl<C: Consumer> Drop for MemoryRegion<'_, C> {
    fn drop(&mut self) {
        // SAFETY: By the type invariant this is the only call for this region. No user data goes
        // with a kernel object.
        let ret = unsafe { bindings::ib_dereg_mr_user(self.as_raw(), null_mut()) };

        // A region that stays keeps its protection domain busy; it refers to nothing of this
        // module.
        if let Err(error) = to_result(ret) {
            C::destroyed("ib_dereg_mr", Err(error));
        }
    }
}
