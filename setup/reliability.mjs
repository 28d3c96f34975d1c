// `npm run reliability [-- --minutes N]`: runs every test that injects faults, one after another. The soak test takes N
// minutes (default 30). Then it writes docs/reliability.md from the tests' notes. If a test fails, it writes nothing.
import { mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { ensureNodePackages } from './node-packages.mjs'
import { runTests } from './run-tests.mjs'
import { runToEnd } from './run-to-end.mjs'
import { runMain, say } from './say.mjs'
import { ensureTestPackages } from './system-packages.mjs'

const defaultMinutes = 30
/** The time limit of one test file, in addition to the soak's minutes. */
const slackMs = 20 * 60_000

const root = fileURLToPath(new URL('..', import.meta.url))

await runMain(async () => {
  const minutes = readMinutes(process.argv.slice(2))
  if (minutes === undefined) return 2
  ensureNodePackages(root)
  ensureTestPackages()
  const notes = mkdtempSync(join(tmpdir(), 'sandyard-reliability-'))
  try {
    const startedMs = Date.now()
    const failed = await runTests(root, {
      paths: findNoting(),
      env: { SANDYARD_RELIABILITY_NOTES: notes, SANDYARD_SOAK_SECS: String(Math.round(minutes * 60)) },
      limitMs: minutes * 60_000 + slackMs,
      atOnce: 1,
    })
    if (failed !== 0) {
      say('a test failed, so docs/reliability.md is not written')
      return failed
    }
    const seconds = String(Math.round((Date.now() - startedMs) / 1000))
    const program = 'test/support/render-reliability-process.ts'
    return await runToEnd(join(root, '.setup', 'node'), [program, notes, 'docs/reliability.md', seconds], { cwd: root })
  } finally {
    rmSync(notes, { recursive: true })
  }
})

/** Finds the test files that record the faults that they inject. */
function findNoting() {
  return readdirSync(join(root, 'test'), { recursive: true, encoding: 'utf8' })
    .filter((name) => name.endsWith('.test.ts'))
    .map((name) => join('test', name))
    .filter((path) => readFileSync(join(root, path), 'utf8').includes('noteFault('))
    .toSorted()
}

function readMinutes(words) {
  if (words.length === 0) return defaultMinutes
  const minutes = Number(words[1])
  if (words.length === 2 && words[0] === '--minutes' && minutes > 0) return minutes
  say(`npm run reliability [-- --minutes N]; seen: ${words.join(' ')}`)
  return undefined
}
