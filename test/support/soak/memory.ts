import { residentMib } from '../process-memory.ts'
import type { ProgramProcess } from '../program.ts'

/** The memory of a process over time, in MiB. */
export type MemoryWatch = {
  readonly name: string
  sample(): void
  /** The medians of the second and the last quarter of the samples. The first quarter is the warm-up. */
  trend(): { readonly earlierMib: number; readonly laterMib: number; readonly samples: number }
}

/** Starts sampling the memory of a process that runs during the whole soak. */
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
