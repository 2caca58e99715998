// SPDX-License-Identifier: GPL-2.0

//! What the user wants of the traffic.

use super::Side;
use crate::verbs::PollContext;
use kernel::{
    prelude::*,
    str::BStr, //
};

/// How many sizes there can be.
pub(super) const SIZES_MAX: usize = 32;

/// What the user wants of the traffic, as far as it can be checked without a device.
pub(crate) struct Settings {
    /// How many messages each test sends; 0 for no traffic.
    pub(crate) messages: u32,
    /// How many messages may be outstanding.
    pub(super) depth: u32,
    pub(super) context: PollContext,
    /// Of the device, and of the one at the other end, which may be the same.
    pub(super) ends: [EndSettings; 2],
    /// Cause an error and recover from it.
    pub(super) errors: bool,
    /// How many connections to make, and to time; perhaps none.
    pub(super) connections: u32,
    /// A size that is too large is bounded, and not an error.
    pub(super) is_bounded: bool,
    sizes: [Option<u32>; SIZES_MAX],
}

/// As many as can be undone in a moment, when the device goes.
const CONNECTIONS_MAX: u32 = 1024;

/// What the user wants of one end of the connection.
pub(super) struct EndSettings {
    /// The number of the port; none for the first one that is active.
    pub(super) port: Option<u32>,
    /// The index of the GID; none for the best one.
    pub(super) gid_index: Option<u32>,
}

impl EndSettings {
    /// Checks the values of an end's parameters; says what is wrong with one that is.
    fn new(side: Side, (port, gid_index): (u32, i32)) -> Result<Self> {
        if gid_index < -1 || gid_index > u8::MAX.into() {
            pr_err!("{side}gid_index={gid_index}: there are 0 to 255, and -1 for any\n");
            return Err(EINVAL);
        }

        Ok(Self {
            port: (port != 0).then_some(port),
            gid_index: u32::try_from(gid_index).ok(),
        })
    }
}

impl Settings {
    /// The sizes that are tested if none are given.
    pub(crate) const SIZES: &CStr = c"8,4096,65536,1048576";

    /// Checks the values of the parameters; says what is wrong with one that is.
    ///
    /// # Errors
    ///
    /// `EINVAL`.
    pub(crate) fn new(
        messages: u32,
        sizes: &BStr,
        depth: u32,
        poll: &BStr,
        [here, there]: [(u32, i32); 2],
        errors: bool,
        connections: u32,
    ) -> Result<Self> {
        if depth == 0 {
            pr_err!("depth=0: at least one message has to be outstanding\n");
            return Err(EINVAL);
        }

        if connections > CONNECTIONS_MAX {
            pr_err!("connections={connections}: there can be 0 to {CONNECTIONS_MAX}\n");
            return Err(EINVAL);
        }

        let context = match &**poll {
            b"direct" => PollContext::Direct,
            b"workqueue" => PollContext::Workqueue,
            _ => {
                pr_err!("poll= must be direct or workqueue\n");
                return Err(EINVAL);
            }
        };

        Ok(Self {
            messages,
            depth,
            context,
            ends: [
                EndSettings::new(Side::Here, here)?,
                EndSettings::new(Side::There, there)?,
            ],
            errors,
            connections,
            is_bounded: &**sizes == Self::SIZES.to_bytes(),
            sizes: parse_sizes(sizes)?,
        })
    }

    /// Returns how many messages are outstanding at most.
    pub(super) fn outstanding(&self) -> u32 {
        self.depth.min(self.messages)
    }

    /// Returns the sizes of the messages in bytes.
    pub(super) fn sizes(&self) -> impl Iterator<Item = u32> + '_ {
        self.sizes.iter().flatten().copied()
    }
}

/// Parses a list of sizes; says what is wrong with it.
fn parse_sizes(list: &BStr) -> Result<[Option<u32>; SIZES_MAX]> {
    let mut sizes = [None; SIZES_MAX];
    let mut places = sizes.iter_mut();
    let mut number = 0usize;

    for text in list.split(|byte| *byte == b',') {
        number = number.wrapping_add(1);

        let Some(size) = parse(text) else {
            pr_err!("sizes=: entry {number} is not a number of bytes, such as in 8,4096\n");
            return Err(EINVAL);
        };

        let Some(place) = places.next() else {
            pr_err!("sizes=: there are more than {SIZES_MAX}\n");
            return Err(EINVAL);
        };

        *place = Some(size);
    }

    Ok(sizes)
}

/// Parses a decimal number.
fn parse(text: &[u8]) -> Option<u32> {
    let mut number = 0u32;

    if text.is_empty() {
        return None;
    }

    for byte in text {
        let digit = char::from(*byte).to_digit(10)?;

        number = number.checked_mul(10)?.checked_add(digit)?;
    }

    Some(number)
}
