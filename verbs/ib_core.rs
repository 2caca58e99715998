// SPDX-License-Identifier: GPL-2.0

//! The `ib_core` that the module was built for, and the one that is running.
//!
//! OFED replaces the kernel's `ib_core` by one whose structures are laid out in another way, and
//! without `CONFIG_MODVERSIONS` the module loader does not notice. `struct ib_client` is concerned
//! as well: [`compare()`] comes before the first registration.

use crate::bindings::{
    self,
    ib_core, //
};
use core::ptr::null_mut;
use kernel::{
    fmt,
    prelude::*,
    str::as_char_ptr_in_const_context, //
};

/// What the build recorded of the `ib_core` that it was for.
pub(crate) struct BuiltFor;

impl fmt::Display for BuiltFor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_fmt(fmt!(
            "{} ({} {})",
            Hex(ib_core::BUILD_ID.unwrap_or_default()),
            ib_core::ORIGIN,
            ib_core::VERSION
        ))
    }
}

/// Whether the `ib_core` that is running is the one that the module was built for.
pub(crate) enum Comparison {
    /// It is: its build-id is the recorded one.
    Same,
    /// It is another one.
    Different(BuildId),
    /// The build recorded no build-id.
    NotRecorded,
    /// The running one does not show its build-id.
    NotReadable(Error),
}

/// Compares the build-ids of the `ib_core` that the module was built for and of the running one.
///
/// Says nothing of a device driver that was built for yet another `ib_core`. May sleep.
pub(crate) fn compare() -> Comparison {
    let Some(recorded) = ib_core::BUILD_ID else {
        return Comparison::NotRecorded;
    };

    match BuildId::of_running() {
        Ok(running) => match running.bytes() {
            Some(bytes) if bytes == recorded => Comparison::Same,
            Some(_) => Comparison::Different(running),
            None => Comparison::NotReadable(EINVAL),
        },
        Err(error) => Comparison::NotReadable(error),
    }
}

/// A build-id, within the ELF note that holds it.
pub(crate) struct BuildId {
    note: [u8; Self::NOTE_SIZE_MAX],
}

impl BuildId {
    /// The type of such a note, which no header of the kernel names.
    const NT_GNU_BUILD_ID: u32 = 3;

    /// Header and name are 16 bytes; of the build-ids of `ld --build-id` SHA-1 is the longest, 20.
    const NOTE_SIZE_MAX: usize = 64;

    /// Reads the note of the `ib_core` that is running.
    ///
    /// # Errors
    ///
    /// `ENOENT` if `ib_core` is built into the kernel, or was linked without a build-id.
    fn of_running() -> Result<Self> {
        let mut note = [0; Self::NOTE_SIZE_MAX];
        let mut buffer = note.as_mut_ptr().cast();

        // SAFETY: The path is NUL-terminated. As there is a buffer, C allocates none, and writes no
        // more to it than its size; a longer file is `EFBIG`.
        let read = unsafe {
            bindings::kernel_read_file_from_path(
                as_char_ptr_in_const_context(c"/sys/module/ib_core/notes/.note.gnu.build-id"),
                0,
                &mut buffer,
                note.len(),
                null_mut(),
                // IPE warns with a backtrace of files of unknown use.
                bindings::kernel_read_file_id_READING_POLICY,
            )
        };

        match c_int::try_from(read) {
            Ok(error) if error < 0 => Err(Error::from_errno(error)),
            _ => Ok(Self { note }),
        }
    }

    /// Returns the build-id itself, if the note is one that holds a build-id.
    fn bytes(&self) -> Option<&[u8]> {
        let (name_size, rest) = self.note.split_first_chunk()?;
        let (size, rest) = rest.split_first_chunk()?;
        let (kind, rest) = rest.split_first_chunk()?;
        let (name, rest) = rest.split_first_chunk()?;

        if u32::from_ne_bytes(*name_size) != 4
            || u32::from_ne_bytes(*kind) != Self::NT_GNU_BUILD_ID
            || name != b"GNU\0"
        {
            return None;
        }

        rest.get(..usize::try_from(u32::from_ne_bytes(*size)).ok()?)
    }
}

impl fmt::Display for BuildId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&Hex(self.bytes().unwrap_or_default()), f)
    }
}

/// Bytes in hexadecimal.
struct Hex<'a>(&'a [u8]);

impl fmt::Display for Hex<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0
            .iter()
            .try_for_each(|byte| f.write_fmt(fmt!("{byte:02x}")))
    }
}
