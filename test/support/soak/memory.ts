import { residentMib } from '../process-memory.ts'
import type { ProgramProcess } from '../program.ts'

/** What a process held over time, in MiB. */
export type MemoryWatch = {
  readonly name: string
  sample(): void
  /** The medians of the second and of the last quarter of the samples: the first is the warming up. */
  trend(): { readonly earlierMib: number; readonly laterMib: number; readonly samples: number }
}

/** Watches a process that lives through the whole soak. */
export function watchMemory(name: string, program: Pick<ProgramProcess, 'pid'>): MemoryWatch {
  const samples: number[] = []
  return {
    name,
    sample() {
      samples.push(residentMib(program.pid()))
    },
    trend() {
      const quarter = Math.floor(samples.length / 4)
      return {
        earlierMib: median(samples.slice(quarter, 2 * quarter)),
        laterMib: median(samples.slice(-quarter)),
        samples: samples.length,
      }
    },
  }
}

function median(values: readonly number[]): number {
  return values.toSorted((a, b) => a - b)[Math.floor(values.length / 2)] ?? 0
}
