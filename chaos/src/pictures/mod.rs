//! The pictures of the documentation, drawn from real runs.
//!
//! Each scene runs on real servers and stores what it saw; the drawing is a function of that record. So a drawing can
//! be changed without running anything again, and the same record is the same picture.

mod canvas;
mod frozen;
mod hand_over;
mod recording;
mod run;
mod screen;

use std::{
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
};

use serde::{Serialize, de::DeserializeOwned};

pub(crate) use frozen::holder;

use crate::Result;

/// Maximum size of a picture, in bytes: pages load several, and the repository keeps every version.
const LARGEST: usize = 60_000;

/// The pictures: the name, and the file by which the pages refer to it.
const SCENES: [(Scene, &str); 4] = [
    (Scene::HandOver, "docs/pictures/hand-over.svg"),
    (Scene::Frozen, "pictures/frozen.svg"),
    (Scene::Run, "pictures/chaos.svg"),
    (Scene::Watch, "docs/pictures/watch.svg"),
];

/// The charts that the harness of the peers draws (`benches/peers`), by the same.
const CHARTS: [&str; 2] = ["docs/pictures/peers-hand-over.svg", "docs/pictures/peers-waiting.svg"];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scene {
    HandOver,
    Frozen,
    Run,
    Watch,
}

/// The settings of the command.
#[derive(Clone, Debug)]
pub(crate) struct Pictures {
    /// Where the records are.
    pub(crate) folder: PathBuf,
    /// Only the picture of that name.
    pub(crate) only: Option<String>,
    /// Whether to draw from the records of an earlier run.
    pub(crate) redraw: bool,
    /// Whether to draw nothing, and only put the pictures that there are into the documentation of the API.
    pub(crate) embed: bool,
}

/// Runs the scenes, and draws them.
pub(crate) async fn make(pictures: Pictures) -> Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let docs = root.join("docs/pictures");
    fs::create_dir_all(&pictures.folder)?;
    fs::create_dir_all(&docs)?;
    if pictures.embed {
        return Ok(fs::write(root.join("src/guide/pictures.md"), definitions(&root)?)?);
    }
    let chosen = |file: &str| pictures.only.as_deref().is_none_or(|only| name(file) == only);
    if !SCENES.iter().any(|(_, file)| chosen(file)) {
        let names: Vec<_> = SCENES.iter().map(|(_, file)| name(file)).collect();
        return Err(format!("there is no such picture; there are {}", names.join(", ")).into());
    }
    for (scene, file) in SCENES.into_iter().filter(|(_, file)| chosen(file)) {
        let folder = &pictures.folder;
        if !pictures.redraw {
            println!("{}: the scene is played", name(file));
            match scene {
                Scene::HandOver => hand_over::record(folder).await?,
                Scene::Frozen => frozen::record(folder).await?,
                Scene::Run => run::record(folder).await?,
                Scene::Watch => recording::record(folder).await?,
            }
        }
        let drawn = match scene {
            Scene::HandOver => hand_over::draw(folder)?,
            Scene::Frozen => frozen::draw(folder)?,
            Scene::Run => run::draw(folder)?,
            Scene::Watch => recording::draw(folder)?,
        };
        println!("{}: {} bytes", name(file), drawn.len());
        if drawn.len() > LARGEST {
            return Err(format!(
                "{} has {} bytes; it must have at most {LARGEST}",
                name(file),
                drawn.len()
            )
            .into());
        }
        fs::write(docs.join(format!("{}.svg", name(file))), drawn)?;
        if scene == Scene::Watch {
            fs::copy(folder.join(recording::CAST), docs.join(recording::CAST))?;
        }
    }
    fs::write(root.join("src/guide/pictures.md"), definitions(&root)?)?;
    Ok(())
}

fn name(file: &str) -> &str {
    let file = file.rsplit('/').next().unwrap_or(file);
    file.trim_end_matches(".svg")
}

/// Returns the pictures as definitions of Markdown: the documentation of the API has no files beside its pages.
fn definitions(root: &Path) -> Result<String> {
    let mut text = String::new();
    for file in SCENES.map(|(_, file)| file).into_iter().chain(CHARTS) {
        let path = root.join("docs/pictures").join(format!("{}.svg", name(file)));
        let picture = fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        writeln!(text, "[{file}]: <data:image/svg+xml,{}>", encoded(&picture))?;
    }
    Ok(text)
}

/// Encodes what has a meaning in an address or in Markdown.
fn encoded(picture: &str) -> String {
    let mut text = String::with_capacity(picture.len() * 5 / 4);
    for character in picture.trim_end().chars() {
        match character {
            '%' | '#' | '<' | '>' | '&' | '"' | '\\' | '\n' => {
                let _ = write!(text, "%{:02X}", u32::from(character));
            }
            other => text.push(other),
        }
    }
    text
}

fn store(folder: &Path, file: &str, record: &impl Serialize) -> Result<()> {
    Ok(fs::write(folder.join(file), serde_json::to_string(record)?)?)
}

fn load<T: DeserializeOwned>(folder: &Path, file: &str) -> Result<T> {
    Ok(serde_json::from_str(&fs::read_to_string(folder.join(file))?)?)
}

/// Writes nanoseconds as milliseconds.
#[expect(clippy::cast_precision_loss, reason = "microseconds are enough")]
fn millis(nanos: u64) -> String {
    format!("{:.1}", nanos as f64 / 1e6)
}
