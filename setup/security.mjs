// `npm run test:security [-- --report]`: attacks a real system with every OCI runtime that this machine has. With --report,
// it then writes docs/security-report.md from the attacks' own records. The report is not written if an attack succeeds.
import { mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { findProgram } from './find-program.mjs'
import { ensureNodePackages } from './node-packages.mjs'
import { runTests } from './run-tests.mjs'
import { runToEnd } from './run-to-end.mjs'
import { runMain, say } from './say.mjs'
import { ensureTestPackages } from './system-packages.mjs'

const runtimes = ['crun', 'runc', 'runsc']
const root = fileURLToPath(new URL('..', import.meta.url))

/** The test files that attack: those that import `attack()`. */
function findAttacks() {
  const paths = readdirSync(join(root, 'test'), { recursive: true }).map((name) => join('test', name))
  const isAttack = (path) => readFileSync(join(root, path), 'utf8').includes("support/security-attack.ts'")
  return paths.filter((path) => path.endsWith('.test.ts') && isAttack(path)).sort()
}

await runMain(async () => {
  const words = process.argv.slice(2)
  if (words.some((word) => word !== '--report')) {
    say(`npm run test:security [-- --report]; seen: ${words.join(' ')}`)
    return 2
  }
  ensureNodePackages(root)
  ensureTestPackages()
  const records = mkdtempSync(join(tmpdir(), 'sandyard-security-'))
  try {
    let failed = 0
    for (const runtime of runtimes) {
      if (findProgram(runtime) === undefined) {
        say(`not attacked with ${runtime}: it is not installed`)
        continue
      }
      say(`attacks with ${runtime}`)
      const env = {
        SANDYARD_ATTACK_RECORDS: records,
        SANDYARD_TEST_RUNTIME: runtime,
        SANDYARD_RUNTIME: runtime,
        SANDYARD_HOST_COUNTS_ROUNDS: '4', // more rounds can exceed the test's time limit on a busy machine
      }
      failed ||= await runTests(root, { paths: findAttacks(), env })
    }
    if (failed !== 0 || words.length === 0) return failed
    const program = 'test/support/render-security-process.ts'
    return await runToEnd(join(root, '.setup', 'node'), [program, records, 'docs/security-report.md'], { cwd: root })
  } finally {
    rmSync(records, { recursive: true })
  }
})
