/** Below this, a measurement says nothing of how time grows with size. */
const SHORTEST_MS = 1

/**
 * How many times as much processor time of this thread `run` takes for four times the size. About 4 if the time is linear, and
 * 16 if it is quadratic. Processor time doesn't grow with the load of the machine.
 */
export function costOfFourfold(size: number, run: (size: number) => void): number {
  run(size) // compiles what it calls
  const one = measureMs(() => run(size))
  return measureMs(() => run(4 * size)) / Math.max(SHORTEST_MS, one)
}

/** The processor time of this thread during a call, in milliseconds. */
function measureMs(run: () => void): number {
  const before = process.threadCpuUsage()
  run()
  const { user, system } = process.threadCpuUsage(before)
  return (user + system) / 1_000
}
