//! Round trips, files of other writers' making, and damaged bytes.
