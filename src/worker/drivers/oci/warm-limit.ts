import type { OciContext } from './context.ts'

/** What a warm sandbox takes of the machine's memory, with its shim and its runtime, in MiB (2026-11). */
export const WARM_MEMORY_MIB = 4

/** How many warm sandboxes the driver keeps at most. Runtimes other than crun keep a process of 10 MB and more for each container. */
export function warmLimit({ runtime, settings }: Pick<OciContext, 'runtime' | 'settings'>): number {
  return runtime.name === 'crun' ? settings.warm : 0
}
