import { residentMib } from '../process-memory.ts'
import type { ProgramProcess } from '../program.ts'

/** The memory of a process over time, in MiB. */
export type MemoryWatch = {
  readonly name: string
  sample(): void
  /**
   * The most memory in each half of what follows the warm-up, which is the first quarter of the samples. Between two full collections of
   * V8, minutes apart, a process grows by a hundred MiB that are no leak. A leak raises what it reaches before each.
   */
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
      const warm = samples.slice(Math.floor(samples.length / 4))
      const half = Math.floor(warm.length / 2)
      return {
        earlierMib: Math.max(...warm.slice(0, half)),
        laterMib: Math.max(...warm.slice(half)),
        samples: samples.length,
      }
    },
  }
}
