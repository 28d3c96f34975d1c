import { spawn } from 'node:child_process'
import { once } from 'node:events'

/** A file system to which nobody can write. */
export type FrozenMount = {
  /** Aborts when the file system was thawed because the limit passed. */
  readonly over: AbortSignal
  /** Thaws the file system. Resolves with whether it was frozen all the time. */
  thaw(): Promise<boolean>
}

/**
 * Freezes, waits, thaws. A process of its own does it. When the process that started it ends, even by SIGKILL, its standard
 * input ends, and it thaws at once.
 */
const SCRIPT = `trap '' TERM INT HUP
fsfreeze -f "$1" || exit 3
echo frozen
timeout "$2" cat >/dev/null
held=$?
fsfreeze -u "$1"
exit "$held"`

/** Freezes the file system that is mounted at a path, for `limitSecs` at most. Rejects if it can't be frozen. */
export async function freezeMount(point: string, limitSecs: number): Promise<FrozenMount> {
  const child = spawn('sh', ['-c', SCRIPT, 'sh', point, String(limitSecs)], {
    stdio: ['pipe', 'pipe', 'ignore'],
    detached: true, // a signal for the process group of a terminal must not end it before it thaws
  })
  child.stdin.on('error', () => undefined) // it ended first
  const ended = once(child, 'exit').then(([code]) => code === 0)
  const over = new AbortController()
  void ended.then((isHeld) => {
    if (!isHeld) over.abort(new Error(`${point} was frozen for ${String(limitSecs)} s, which is the limit`))
  })
  const isFrozen = await Promise.race([once(child.stdout, 'data').then(() => true), ended.then(() => false)])
  if (!isFrozen) throw new Error(`${point} can't be frozen`)
  return {
    over: over.signal,
    thaw() {
      child.stdin.end()
      return ended
    },
  }
}
