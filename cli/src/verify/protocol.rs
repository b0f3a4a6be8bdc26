//! The protocol: random sequences of operations, on this server and by the specification, to the bit.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use mongodb::error::ErrorKind;
use watchlock_core::protocol::{Kind, Use};
use watchlock_proofs::differential::{MIXED, Setup, compare};

use super::report::Check;
use crate::{
    connection::to_its_end,
    exit::Failure,
    ground::{Ground, asked},
};

pub(super) const SECTION: &str = "protocol";

/// Sequences whose steps go in one command, and the steps of each.
const TOGETHER: u64 = 40;
const STEPS: usize = 8;

/// The kinds of locks, by path: an empty one for documents that are a lock's alone.
const SUBJECTS: [(&str, &str, &[Use]); 8] = [
    ("mutexes", "", &[(Kind::Mutex, 1)]),
    ("semaphores", "", &[(Kind::Semaphore, 3)]),
    ("readers and writers", "", &[(Kind::RwLock, 1 << 20)]),
    ("elections", "", &[(Kind::Election, 1)]),
    ("changes of the kind", "", MIXED),
    ("documents", "watchlock", &[(Kind::Document, 1)]),
    ("documents, a path", "a.b", &[(Kind::Document, 1)]),
    (
        "elements",
        r#"a.of%2Elines.sku="%24NOW",line=7"#,
        &[(Kind::Document, 1)],
    ),
];

/// Compares for about this long.
pub(super) async fn run(
    ground: &Ground<'_>,
    (seed, time): (u64, Duration),
    checks: &mut Vec<Check>,
) -> Result<(), Failure> {
    let share = time / u32::try_from(SUBJECTS.len()).unwrap_or(1);
    for (name, path, uses) in SUBJECTS {
        let setup = Arc::new(Setup::at_path(path, uses));
        let begun = Instant::now();
        let (mut seeds, mut mismatch) = (seed..seed, None);
        while mismatch.is_none() && (seeds.is_empty() || begun.elapsed() < share) {
            let next = seeds.end..seeds.end + TOGETHER;
            let collection = ground.collection("protocol");
            let (compared, setup, drawn) = (collection.clone(), setup.clone(), next.clone());
            let compared = to_its_end(async move { compare(&compared, &setup, drawn, STEPS).await }).await?;
            if let Err(error) = &compared
                && matches!(&*error.kind, ErrorKind::Command(_) | ErrorKind::Write(_))
                && !Failure::driver(error).is_unavailable()
            {
                // Refused as a whole: the server does not know the pipelines at all.
                mismatch = Some(error.to_string());
                break;
            }
            let compared = compared.map_err(|error| Failure::driver(&error))?;
            mismatch = compared.err().map(|mismatch| mismatch.to_string());
            seeds.end = next.end;
            let emptied = collection.clone();
            asked(async move { emptied.drop().await }).await?;
        }
        let count = seeds.end - seeds.start;
        checks.push(match mismatch {
            None => Check::kept(name, format!("{count} sequences of {STEPS} steps, to the bit")),
            Some(evidence) => Check::broken(name, "the server does not do what the protocol says").with(evidence),
        });
    }
    Ok(())
}
