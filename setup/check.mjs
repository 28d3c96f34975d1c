// `npm run check [-- --fix]`: checks the source with all tools, even after one has failed. The rules of the
// architecture that no tool can check are checked by a test, test/architecture.test.ts.
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { ensureDocumentTools } from './document-tools.mjs'
import { ensureNodePackages } from './node-packages.mjs'
import { runToEnd } from './run-to-end.mjs'
import { runMain, SetUpFailure } from './say.mjs'

const root = fileURLToPath(new URL('..', import.meta.url))

/** The linter of the API document sends no usage data and asks for no newer version. */
const quietLinter = { REDOCLY_TELEMETRY: 'off', REDOCLY_SUPPRESS_NOTIFICATIONS: 'true' }

/**
 * The checks: title, script in node_modules, arguments, and the arguments that `--fix` adds or uses instead. Those with
 * `isFetched` are not in the lock file: see document-tools.mjs.
 */
const checks = [
  { title: 'types (tsc)', script: 'typescript/bin/tsc', args: ['-p', '.'] },
  { title: 'types of the dashboard (tsc)', script: 'typescript/bin/tsc', args: ['-p', 'dashboard'] },
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
  {
    title: 'API document (redocly)',
    script: '@redocly/cli/bin/cli.js',
    args: ['lint', 'openapi.json', '--config', 'redocly.yaml'],
    isFetched: true,
  },
  {
    title: 'API document (spectral)',
    script: '@stoplight/spectral-cli/dist/index.js',
    args: ['lint', 'openapi.json', '--fail-severity', 'hint'],
    isFetched: true,
  },
]

await runMain(async () => {
  const isFixing = process.argv.includes('--fix')
  const unknown = process.argv.slice(2).find((word) => word !== '--fix')
  if (unknown !== undefined) throw new SetUpFailure(`unknown argument ${unknown}; the only one is --fix`)
  ensureNodePackages(root)
  const documentTools = ensureDocumentTools(root)
  const failed = []
  for (const { title, script, args, fixArgs = [], insteadToFix = [...args, ...fixArgs], isFetched = false } of checks) {
    const startedMs = performance.now()
    console.log(`--- ${title}`)
    const path = join(isFetched ? documentTools : join(root, 'node_modules'), script)
    const exitCode = await runToEnd(join(root, '.setup', 'node'), [path, ...(isFixing ? insteadToFix : args)], {
      cwd: root,
      env: quietLinter,
    })
    if (exitCode !== 0) failed.push(title)
    console.log(
      `--- ${title}: ${exitCode === 0 ? 'ok' : 'FAILED'} in ${((performance.now() - startedMs) / 1000).toFixed(1)} s\n`,
    )
  }
  console.log(failed.length === 0 ? 'All checks passed.' : `Failed: ${failed.join(', ')}`)
  return failed.length === 0 ? 0 : 1
})
