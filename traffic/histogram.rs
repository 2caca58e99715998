// SPDX-License-Identifier: GPL-2.0

//! Latencies, counted by their size.

use kernel::{
    alloc::{
        KVBox,
        KVVec, //
    },
    prelude::*, //
};

/// How many counters there are for the values from one power of two to the next.
const STEPS: u32 = 128;
const STEPS_SHIFT: u32 = STEPS.trailing_zeros();

/// The largest value, 10 s in nanoseconds; larger ones are counted as this one.
const MAX: u64 = 10_000_000_000;

/// The index of the counter of [`MAX`], and one more.
const COUNTERS: usize = index(MAX) + 1;

/// How many there is room for. That of a power of two no index leaves that is cut down to it, so
/// none has to be checked.
const ROOM: usize = COUNTERS.next_power_of_two();

/// Returns the index of the counter for a value.
///
/// Values below [`STEPS`] have one each. From there on each power of two has as many, so that no
/// counter is wider than 1/128 of its values: less than 1 %.
const fn index(value: u64) -> usize {
    let value = if value < MAX { value } else { MAX };

    if value < STEPS as u64 {
        return value as usize;
    }

    let shift = value.ilog2().wrapping_sub(STEPS_SHIFT);

    // The highest bit of what is left counts as one more power of two.
    ((shift as usize) << STEPS_SHIFT).wrapping_add((value >> shift) as usize)
}

/// Returns the smallest and the largest value of a counter.
fn bounds(index: usize) -> (u64, u64) {
    let index = index as u64;

    if index < u64::from(STEPS) {
        return (index, index);
    }

    let shift = (index >> STEPS_SHIFT).wrapping_sub(1) as u32;
    let step = (index & u64::from(STEPS - 1)) | u64::from(STEPS);
    let lower = step.wrapping_shl(shift);

    (
        lower,
        lower | 1u64.wrapping_shl(shift).wrapping_sub(1), //
    )
}

/// How often which value was seen, from 0 to 10 s.
///
/// Recording neither allocates nor fails.
pub(super) struct Histogram {
    counters: KVBox<[u32; ROOM]>,
    count: u64,
    min: u64,
    max: u64,
}

impl Histogram {
    /// Makes an empty one.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(super) fn new() -> Result<Self> {
        Ok(Self {
            counters: KVBox::init(pin_init::init_zeroed(), GFP_KERNEL)?,
            count: 0,
            min: u64::MAX,
            max: 0,
        })
    }

    /// Forgets everything.
    pub(super) fn clear(&mut self) {
        self.counters.fill(0);
        self.count = 0;
        self.min = u64::MAX;
        self.max = 0;
    }

    /// Counts a value.
    pub(super) fn record(&mut self, value: u64) {
        if let Some(counter) = self.counters.get_mut(index(value) & (ROOM - 1)) {
            // A test has no more messages than that.
            *counter = counter.wrapping_add(1);
        }

        self.count = self.count.wrapping_add(1);
        self.min = self.min.min(value);
        self.max = self.max.max(value);
    }

    /// Returns what is kept of it.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(super) fn summary(&self) -> Result<Summary> {
        let mut used = 0usize;

        for count in self.counters.iter() {
            used = used.wrapping_add(usize::from(*count > 0));
        }

        let mut buckets = KVVec::with_capacity(used, GFP_KERNEL)?;
        let mut index = 0usize;

        for count in self.counters.iter() {
            if *count > 0 {
                let (lower, mut upper) = bounds(index);

                // The last is also that of what is larger.
                if index.wrapping_add(1) == COUNTERS {
                    upper = upper.max(self.max);
                }

                buckets.push_within_capacity(Bucket {
                    lower,
                    upper,
                    count: *count,
                })?;
            }

            index = index.wrapping_add(1);
        }

        Ok(Summary {
            min: self.min.min(self.max),
            max: self.max,
            count: self.count,
            buckets,
        })
    }
}

/// How many values were seen from `lower` to `upper`.
pub(super) struct Bucket {
    pub(super) lower: u64,
    pub(super) upper: u64,
    pub(super) count: u32,
}

/// A finished [`Histogram`], of which only the counters are kept that are not zero.
pub(super) struct Summary {
    /// The smallest value, exactly.
    pub(super) min: u64,
    /// The largest value, exactly.
    pub(super) max: u64,
    count: u64,
    /// In the order of their values.
    pub(super) buckets: KVVec<Bucket>,
}

impl Summary {
    /// Returns the value that `permille` thousandths of all values are not larger than, to 1 %.
    pub(super) fn percentile(&self, permille: u64) -> u64 {
        let rank = self.count.saturating_mul(permille).div_ceil(1000);
        let mut seen = 0u64;

        for bucket in self.buckets.iter() {
            seen = seen.saturating_add(bucket.count.into());

            if seen >= rank {
                return bucket.upper.min(self.max);
            }
        }

        self.max
    }
}
