// `npm run bench [-- NAME…]`: installs missing packages, fetches pgbench, sshd, docker and podman, then runs the
// benchmarks. They find pgbench by the path in SANDYARD_PGBENCH, and the others in the folder SANDYARD_BENCH_PROGRAMS.
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { ensureBenchPrograms } from './bench-programs.mjs'
import { programOf } from './built-program.mjs'
import { ensureBuilt } from './ensure-built.mjs'
import { ensureNodePackages } from './node-packages.mjs'
import { ensurePgbench } from './pgbench.mjs'
import { runToEnd } from './run-to-end.mjs'
import { runMain } from './say.mjs'
import { ensureSystemPackages } from './system-packages.mjs'

const root = fileURLToPath(new URL('..', import.meta.url))

await runMain(async () => {
  ensureNodePackages(root)
  ensureSystemPackages()
  // What is measured is what users start.
  const program = programOf(root)
  ensureBuilt(root, [program])
  const env = {
    ...(program.isBuilt() ? { SANDYARD_BENCH_PROGRAM: program.file } : {}),
    SANDYARD_PGBENCH: ensurePgbench(join(root, '.setup', 'pgbench')) ?? '',
    ...ensureBenchPrograms(join(root, '.setup', 'bench-programs')),
  }
  return await runToEnd(join(root, '.setup', 'node'), ['bench/main.ts', ...process.argv.slice(2)], { cwd: root, env })
})
