// `npm run check [-- --fix]`: checks the source with all tools, even after one has failed. The rules of the
// architecture that no tool can check are checked by a test, test/architecture.test.ts.
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { ensureNodePackages } from './node-packages.mjs'
import { runToEnd } from './run-to-end.mjs'
import { runMain, SetUpFailure } from './say.mjs'

const root = fileURLToPath(new URL('..', import.meta.url))

/** The checks: title, script in node_modules, arguments, and the arguments that `--fix` adds or uses instead. */
const checks = [
  { title: 'types (tsc)', script: 'typescript/bin/tsc', args: ['-p', '.'] },
  {
    title: 'lint (oxlint)',
    script: 'oxlint/bin/oxlint',
    args: ['--type-aware', '--deny-warnings'],
    fixArgs: ['--fix'],
  },
  {
    title: 'format (prettier)',
    script: 'prettier/bin/prettier.cjs',
    args: ['--check', '.'],
    insteadToFix: ['--write', '--log-level=warn', '.'],
  },
  { title: 'dead code (knip)', script: 'knip/bin/knip.js', args: ['--no-progress'] },
]

await runMain(async () => {
  const isFixing = process.argv.includes('--fix')
  const unknown = process.argv.slice(2).find((word) => word !== '--fix')
  if (unknown !== undefined) throw new SetUpFailure(`unknown argument ${unknown}; the only one is --fix`)
  ensureNodePackages(root)
  const failed = []
  for (const { title, script, args, fixArgs = [], insteadToFix = [...args, ...fixArgs] } of checks) {
    const startedMs = performance.now()
    console.log(`--- ${title}`)
    const path = join(root, 'node_modules', script)
    const exitCode = await runToEnd(join(root, '.setup', 'node'), [path, ...(isFixing ? insteadToFix : args)], {
      cwd: root,
    })
    if (exitCode !== 0) failed.push(title)
    console.log(
      `--- ${title}: ${exitCode === 0 ? 'ok' : 'FAILED'} in ${((performance.now() - startedMs) / 1000).toFixed(1)} s\n`,
    )
  }
  console.log(failed.length === 0 ? 'All checks passed.' : `Failed: ${failed.join(', ')}`)
  return failed.length === 0 ? 0 : 1
})
