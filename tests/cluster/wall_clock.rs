//! Wall clocks that are wrong, per process: a library of forty lines of C that is put before the system's.
//!
//! It shifts the wall clock alone. Where no C compiler makes it, or the system is no 64-bit Linux, tests are skipped.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The library, and where each process's shift stands.
pub struct WallClock {
    library: PathBuf,
    shifts: PathBuf,
}

impl WallClock {
    /// Builds the library into `dir`; why not, if not.
    pub fn build(dir: &Path) -> Result<Self, String> {
        if !cfg!(all(target_os = "linux", target_pointer_width = "64")) {
            return Err("wall clocks are shifted on 64-bit Linux alone".to_owned());
        }
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cluster/wall_clock.c");
        let library = dir.join("wall_clock.so");
        let mut compile = Command::new("cc");
        compile.args(["-shared", "-fPIC", "-O1", "-o"]).arg(&library).arg(source);
        match compile.output() {
            Ok(done) if done.status.success() => Ok(Self { library, shifts: dir.to_owned() }),
            Ok(done) => Err(format!("cc: {}", String::from_utf8_lossy(&done.stderr))),
            Err(error) => Err(format!("cc: {error}")),
        }
    }

    /// Sets the shift of `who`, also while it runs.
    pub fn shift(&self, who: &str, seconds: i64) {
        let (file, next) = (self.file(who), self.file(&format!("{who}.next")));
        std::fs::write(&next, seconds.to_string()).unwrap();
        std::fs::rename(next, file).unwrap();
    }

    /// The environment of a process whose clock is that of `who`.
    pub fn environment(&self, who: &str) -> Vec<(String, String)> {
        let text = |path: &Path| path.to_str().unwrap().to_owned();
        vec![("LD_PRELOAD".to_owned(), text(&self.library)), ("WALL_SHIFT_FILE".to_owned(), text(&self.file(who)))]
    }

    fn file(&self, who: &str) -> PathBuf {
        self.shifts.join(format!("{who}.shift"))
    }
}
