import { totalmem } from 'node:os'
import type { OciContext } from './context.ts'

/** What a warm sandbox takes of the machine's memory, with its shim and its runtime, in MiB (2026-11). */
export const WARM_MEMORY_MIB = 4

/** How many warm sandboxes the driver keeps at most. Runtimes other than crun keep a process of 10 MB and more for each container. */
export function warmLimit({ runtime, settings }: Pick<OciContext, 'runtime' | 'settings'>): number {
  return runtime.name === 'crun' ? settings.warm : 0
}

const MIB_FOR_EACH = 256
const LEAST = 8
/** A burst of this many finds one for each. More would take longer to make again than bursts are apart. */
const MOST = 32

/** How many to keep if no setting says it: so many that they take at most 1.6 % of the memory of a machine with 2 GiB or more. */
export function defaultWarmLimit(totalBytes = totalmem()): number {
  return Math.min(MOST, Math.max(LEAST, Math.floor(totalBytes / 1024 / 1024 / MIB_FOR_EACH)))
}
