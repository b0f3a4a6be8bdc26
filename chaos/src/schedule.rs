//! The schedule of faults: a pure function of the seed.

use std::{collections::BTreeSet, fmt, path::PathBuf, time::Duration};

use crate::{
    Result,
    fault::{CONFINED_KINDS, Fault, KINDS},
    random::Random,
};

/// Additional time of faults that make something wait in vain: long beside any deadline.
const MORE: Duration = Duration::from_secs(8);

/// The faults of a soak: those of every day.
const EVERY_DAY: [&str; 2] = ["client killed", "cursors killed"];

/// The one client that is killed in a soak; the others live as long as it lasts.
const DOOMED: usize = 0;

/// The settings of a run.
#[derive(Clone, Debug)]
pub(crate) struct Play {
    pub(crate) seed: u64,
    pub(crate) mix: Mix,
    pub(crate) lasts: Duration,
    pub(crate) folder: PathBuf,
    pub(crate) ignores_loss: bool,
    /// Whether it is normal use, in which nothing may grow.
    pub(crate) soaks: bool,
}

impl Play {
    pub(crate) fn soak(seed: u64, minutes: u64) -> Self {
        Self {
            seed,
            mix: Mix(EVERY_DAY.into_iter().collect()),
            lasts: Duration::from_secs(minutes.saturating_mul(60)),
            folder: PathBuf::from(format!("target/chaos/soak-{seed}")),
            ignores_loss: false,
            soaks: true,
        }
    }

    /// Returns the burst of that number.
    pub(crate) fn burst(&self, number: u64) -> Burst {
        let mut burst = Burst::of(self.seed, number, &self.mix);
        if self.soaks {
            let is_of_every_day = |planned: &Planned| planned.fault.victim().is_none_or(|client| client == DOOMED);
            burst.faults.retain(is_of_every_day);
        }
        burst
    }
}

/// A fault with its time, counted from the start of the burst.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Planned {
    pub(crate) after: Duration,
    pub(crate) lasts: Duration,
    pub(crate) fault: Fault,
}

/// Faults that come together; after them the cluster is made whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Burst {
    pub(crate) faults: Vec<Planned>,
}

/// The kinds of faults of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mix(BTreeSet<&'static str>);

/// All kinds.
impl Default for Mix {
    fn default() -> Self {
        Self(KINDS.into_iter().collect())
    }
}

impl Mix {
    /// Parses a choice of kinds, with commas between them and `-` for a space.
    pub(crate) fn parse(text: &str) -> Result<Self> {
        let find = |name: &str| {
            let kind = KINDS
                .into_iter()
                .find(|kind| kind.replace(' ', "-") == name.replace(' ', "-"));
            kind.ok_or_else(|| format!("there is no fault `{name}`: {} are all", KINDS.join(", ")).into())
        };
        text.split(',').map(find).collect::<Result<_>>().map(Self)
    }

    fn has(&self, fault: Fault) -> bool {
        self.0.contains(fault.kind())
    }
}

impl fmt::Display for Mix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<String> = self.0.iter().map(|kind| kind.replace(' ', "-")).collect();
        f.write_str(&names.join(","))
    }
}

/// Number of bursts in a hundred that have only faults confined to a client or to some locks, so that everything else
/// is judged to be unharmed.
const CONFINED: u64 = 40;

impl Burst {
    /// Returns the burst of that number.
    pub(crate) fn of(seed: u64, number: u64, mix: &Mix) -> Self {
        let mut random = Random::new(seed, 1_000_000 + number);
        let length = random.within(4_000..12_000);
        let count = random.within(2..8);
        let confined = random.chance(CONFINED) && mix.0.iter().any(|kind| CONFINED_KINDS.contains(kind));
        let mut faults: Vec<Planned> = (0..count)
            .map(|_| {
                let after = random.millis(0..length);
                // Shorter than a lease, or longer.
                let lasts = if random.chance(50) {
                    random.millis(50..1_500)
                } else {
                    random.millis(1_500..7_000)
                };
                let fault = Fault::any_of(&mut random, |fault| {
                    mix.has(fault) && (!confined || fault.is_confined())
                });
                let more = if fault.needs_time() { MORE } else { Duration::ZERO };
                Planned {
                    after,
                    lasts: lasts + more,
                    fault,
                }
            })
            .collect();
        faults.sort_by_key(|planned| planned.after);
        Self { faults }
    }
}

impl fmt::Display for Burst {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for Planned { after, lasts, fault } in &self.faults {
            writeln!(
                f,
                "  {:>6} ms  for {:>4} ms  {fault}",
                after.as_millis(),
                lasts.as_millis()
            )?;
        }
        writeln!(f, "             then all is made whole")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kinds(mix: &Mix) -> BTreeSet<&'static str> {
        let faults = (0..400).flat_map(|number| Burst::of(1, number, mix).faults);
        faults.map(|planned| planned.fault.kind()).collect()
    }

    #[test]
    fn a_burst_follows_from_its_seed_and_number() {
        let mix = Mix::default();
        assert_eq!(Burst::of(7, 3, &mix), Burst::of(7, 3, &mix));
        assert_ne!(Burst::of(7, 3, &mix), Burst::of(7, 4, &mix));
        assert_ne!(Burst::of(7, 3, &mix), Burst::of(8, 3, &mix));
    }

    #[test]
    fn every_kind_of_fault_comes_up_and_each_can_come_alone() {
        assert_eq!(kinds(&Mix::default()), KINDS.into_iter().collect());
        for kind in KINDS {
            let alone = Mix::parse(&kind.replace(' ', "-")).unwrap();
            assert_eq!(kinds(&alone), [kind].into_iter().collect());
            assert_eq!(Mix::parse(&alone.to_string()).unwrap(), alone);
        }
        Mix::parse("no-such-fault").unwrap_err();
    }

    #[test]
    fn faults_are_confined_by_their_kinds() {
        let bursts = (0..400).flat_map(|number| Burst::of(1, number, &Mix::default()).faults);
        let confined = bursts.map(|planned| planned.fault).filter(|fault| fault.is_confined());
        let kinds: BTreeSet<&str> = confined.map(Fault::kind).collect();
        assert_eq!(kinds, CONFINED_KINDS.into_iter().collect());
    }
}
