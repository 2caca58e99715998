// SPDX-License-Identifier: GPL-2.0

//! Memory that a device can reach.

use super::Device;
use core::{
    marker::PhantomData,
    ptr::{
        null,
        NonNull, //
    },
};
use kernel::{
    bindings,
    page::PAGE_SIZE,
    prelude::*, //
};

/// `__GFP_RETRY_MAYFAIL`, which bindgen cannot evaluate, and the kernel crate does not have: fails
/// where there is too little memory, instead of killing somebody for it.
const GFP_RETRY_MAYFAIL: bindings::gfp_t = 1 << bindings::___GFP_RETRY_MAYFAIL_BIT;

/// How memory is allocated; it is zero then.
const FLAGS: bindings::gfp_t =
    bindings::GFP_KERNEL | bindings::__GFP_ZERO | bindings::__GFP_NOWARN | GFP_RETRY_MAYFAIL;

/// Whose memory a [`Buffer`] is.
enum Owner {
    /// Of the kernel; for a device that is software and wants virtual addresses.
    Kernel,
    /// Coherent memory of a device that accesses memory by DMA.
    Device(*mut bindings::device),
}

/// A piece of memory, contiguous for the device, that it and the processor see alike.
///
/// The device may write to it at any moment, so there are no references to what is in it.
///
/// # Invariants
///
/// - `memory` is valid for `size` bytes, aligned to a page, and belongs to `owner`.
/// - The device reaches it by `address`.
pub(crate) struct Buffer<'d> {
    memory: NonNull<u64>,
    address: u64,
    size: usize,
    owner: Owner,
    _device: PhantomData<Device<'d>>,
}

impl<'d> Buffer<'d> {
    /// Allocates at least `size` bytes, in whole pages, that are zero. May sleep.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn allocate(device: Device<'d>, size: usize) -> Result<Self> {
        let size = pages(size).checked_mul(PAGE_SIZE).ok_or(ENOMEM)?;
        let dma_device = device.dma_device();

        if dma_device.is_null() {
            // Not by the kernel crate, which has no such flag.
            // SAFETY: There is nothing that would be reallocated.
            let memory = unsafe {
                bindings::krealloc_node_align(
                    null(),
                    size,
                    PAGE_SIZE,
                    FLAGS,
                    bindings::NUMA_NO_NODE,
                )
            };

            // INVARIANT: `kmalloc()` of a multiple of a page is aligned to a page
            // (Documentation/core-api/memory-allocation.rst), and devices like this one take the
            // virtual address (`ib_dma_map_single()`).
            return Ok(Self {
                memory: NonNull::new(memory.cast()).ok_or(ENOMEM)?,
                address: memory.expose_provenance() as u64,
                size,
                owner: Owner::Kernel,
                _device: PhantomData,
            });
        }

        let dma_device = dma_device.cast();
        let mut address = 0;

        // SAFETY: The device that does DMA for an RDMA device is there for as long as that is.
        let memory = unsafe { bindings::dma_alloc_attrs(dma_device, size, &mut address, FLAGS, 0) };

        // INVARIANT: Such memory is aligned to a page (Documentation/core-api/dma-api.rst).
        Ok(Self {
            memory: NonNull::new(memory.cast()).ok_or(ENOMEM)?,
            address,
            size,
            owner: Owner::Device(dma_device),
            _device: PhantomData,
        })
    }

    /// Tells whether so many buffers of so many bytes leave others at least as much as they take: they
    /// cannot be given back, and whoever wants memory when there is none may be killed.
    pub(super) fn are_affordable(count: usize, size: usize) -> bool {
        // SAFETY: C adds up counters that are always there, and takes no lock.
        let available = unsafe { bindings::si_mem_available() };
        // Either kind may take a power of two of pages.
        let wanted = pages(size)
            .checked_next_power_of_two()
            .and_then(|pages| pages.checked_mul(count));

        usize::try_from(available / 2).is_ok_and(|most| wanted.is_some_and(|wanted| wanted <= most))
    }

    /// Returns the address by which the device reaches the memory.
    pub(super) fn address(&self) -> u64 {
        self.address
    }

    /// Returns the size in bytes, a multiple of that of a page.
    pub(super) fn size(&self) -> usize {
        self.size
    }

    /// Returns the first bytes.
    ///
    /// # Safety
    ///
    /// The buffer must have as many.
    pub(super) unsafe fn contents(&self, length: Length) -> Contents<'_> {
        // INVARIANT: By the safety requirement, and the type invariant.
        Contents {
            memory: self.memory,
            length,
            _buffer: PhantomData,
        }
    }
}

/// Returns how many pages a buffer of so many bytes has.
fn pages(size: usize) -> usize {
    size.div_ceil(PAGE_SIZE).max(1)
}

/// A number of bytes, and in how many words they are.
#[derive(Clone, Copy)]
pub(super) struct Length {
    bytes: usize,
    words: usize,
}

impl Length {
    /// Makes it of a number of bytes, or of `max` if it is more: a multiple of that of a word.
    pub(super) fn new(bytes: usize, max: usize) -> Self {
        let bytes = bytes.min(max);

        Self {
            bytes,
            words: bytes.div_ceil(size_of::<u64>()),
        }
    }
}

/// The first bytes of a [`Buffer`].
///
/// # Invariants
///
/// `memory` is valid for as many words as there are in `length`, for `'b`.
pub(crate) struct Contents<'b> {
    memory: NonNull<u64>,
    length: Length,
    _buffer: PhantomData<&'b ()>,
}

impl Contents<'_> {
    /// Writes `word(0)`, `word(1)`, ..., rounded up to whole words.
    pub(crate) fn fill(self, mut word: impl FnMut(u64) -> u64) {
        let mut index = 0;

        while index < self.length.words {
            // SAFETY: By the type invariant. The device may access it at the same time, hence
            // volatile.
            unsafe {
                self.memory
                    .as_ptr()
                    .add(index)
                    .write_volatile(word(index as u64))
            };
            index = index.wrapping_add(1);
        }
    }

    /// Compares it with `word(0)`, `word(1)`, ...; returns the offset of the first byte that differs.
    pub(crate) fn check(self, mut word: impl FnMut(u64) -> u64) -> Result<(), usize> {
        let mut index = 0;

        while index < self.length.words {
            // SAFETY: As in `fill()`.
            let found = unsafe { self.memory.as_ptr().add(index).read_volatile() };
            let difference = found ^ word(index as u64);

            if difference != 0 {
                // Bytes are compared in the order of their addresses.
                let byte = u64::from_le(difference).trailing_zeros() as usize / 8;
                let offset = index.wrapping_mul(size_of::<u64>()).wrapping_add(byte);

                // Behind the end is what was there before.
                if offset < self.length.bytes {
                    return Err(offset);
                }
            }

            index = index.wrapping_add(1);
        }

        Ok(())
    }
}

impl Drop for Buffer<'_> {
    fn drop(&mut self) {
        let memory = self.memory.as_ptr().cast();

        match self.owner {
            // SAFETY: By the type invariant it is such memory, and it is freed only here.
            Owner::Kernel => unsafe { bindings::kfree(memory) },
            // SAFETY: As above.
            Owner::Device(dma_device) => unsafe {
                bindings::dma_free_attrs(dma_device, self.size, memory, self.address, 0)
            },
        }
    }
}
