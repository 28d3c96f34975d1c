import { existsSync, readdirSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'

/** The folders of shared libraries on Debian, by architecture. */
const LIBRARIES = '/usr/lib'

/** Returns the path of libfaketime, or null if it is not installed. */
function findLibrary(): string | null {
  const folders = existsSync(LIBRARIES) ? readdirSync(LIBRARIES) : []
  const paths = folders.map((folder) => join(LIBRARIES, folder, 'faketime/libfaketimeMT.so.1'))
  return paths.find((path) => existsSync(path)) ?? null
}

/** Returns the reason why no clock can be set here, or false. For `{ skip }`. */
export function whyNoClock(): string | false {
  return findLibrary() === null ? 'faketime is not installed' : false
}

/** The wall clock of one process and its children, which a test sets. Their monotonic clocks stay right. */
export type SetClock = {
  /** The variables of the process. */
  readonly env: Readonly<Record<string, string>>
  /** Sets the clock so many days ahead of the machine's. */
  setDaysAhead(days: number): void
}

/** Makes a clock. `path` is the file that tells the processes how far their clock is ahead. */
export function makeSetClock(path: string): SetClock {
  const setDaysAhead = (days: number): void => {
    writeFileSync(path, `${days < 0 ? '-' : '+'}${String(Math.abs(days))}d\n`)
  }
  setDaysAhead(0)
  return {
    env: {
      LD_PRELOAD: findLibrary() ?? '',
      FAKETIME_TIMESTAMP_FILE: path,
      FAKETIME_NO_CACHE: '1',
      FAKETIME_DONT_FAKE_MONOTONIC: '1',
      NO_FAKE_STAT: '1',
    },
    setDaysAhead,
  }
}
