// Runs one benchmark for support/run-apart.ts, and sends it the rows and the picture. It ends when its parent does.
import { BENCHMARKS } from './benchmarks.ts'
import type { ApartResult } from './support/run-apart.ts'

// The server ends when this process exits (support/cloud.ts). Therefore a signal must end this process cleanly.
for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const) process.once(signal, () => process.exit(1))
process.once('disconnect', () => process.exit(1))

const [name = '', size] = process.argv.slice(2)
const benchmark = BENCHMARKS[name]
if (benchmark === undefined) throw new Error(`there is no benchmark '${name}'`)
let picture: string | null = null
const rows = await benchmark.run({
  isQuick: size === 'quick',
  onPicture: (svg) => {
    picture = svg
    return Promise.resolve()
  },
})
const result: ApartResult = { rows, picture }
process.send?.(result, () => process.exit(0))
