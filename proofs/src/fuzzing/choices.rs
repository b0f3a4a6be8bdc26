//! Bytes as a sequence of choices.

/// Bytes as the source of choices. After their end the first option is always chosen.
#[derive(Debug)]
pub(super) struct Choices<'a> {
    bytes: &'a [u8],
}

impl<'a> Choices<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes }
    }

    pub(super) fn is_over(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Returns a number below `bound`, which is at most 256.
    pub(super) fn below(&mut self, bound: usize) -> usize {
        match self.bytes.split_first() {
            Some((first, rest)) => {
                self.bytes = rest;
                usize::from(*first) % bound
            }
            None => 0,
        }
    }

    /// Returns `true` once in this many times.
    pub(super) fn one_in(&mut self, times: usize) -> bool {
        self.below(times) == times - 1
    }

    pub(super) fn pick<T: Clone>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())].clone()
    }

    /// Returns a number at or near a limit.
    pub(super) fn number(&mut self) -> i64 {
        let near = [
            0,
            1,
            -1,
            2,
            7,
            i64::MIN,
            i64::MAX,
            i64::MAX / 2,
            1 << 53,
            1 << 32,
            1_700_000_000_000,
        ];
        let offset = [0, 1, -1, 1_000, -1_000, 30_000];
        self.pick(&near).saturating_add(self.pick(&offset))
    }
}
