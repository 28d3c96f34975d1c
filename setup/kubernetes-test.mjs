// `npm run test:kubernetes [-- --at-hand] [-- TEST-FILE…]`: runs tests against a real Kubernetes of one node, which it starts and takes down.
// `--at-hand` builds nothing and leaves out the longest tests. It ends with 2 if there are no built programs, or if they can't run here.
// CONTRIBUTING.md says how slow this is.
import { existsSync, readdirSync } from 'node:fs'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { engineFolder, ensureHelm, findArchive } from './engines/engine-programs.mjs'
import { environmentOf, startKubernetes } from './engines/kubernetes.mjs'
import { ensureKubernetesPrograms, programsName, whyNoKubernetes } from './engines/kubernetes-programs.mjs'
import { runTestsOnMachine } from './engines/run-on-machine.mjs'
import { ensureNodePackages } from './node-packages.mjs'
import { runMain, say, SetUpFailure } from './say.mjs'
import { ensurePackagingTools } from './system-packages.mjs'

const root = fileURLToPath(new URL('..', import.meta.url))
const folder = 'test/kubernetes'
/** The only test that needs Helm, which takes minutes to build, and the image of packaging/, which takes two minutes to make. */
const chart = 'chart.test.ts'
/** A minute or more each: CI has a limit for everything together. */
const longest = [chart, 'driver-e2e.test.ts', 'faults.test.ts', 'rules.test.ts', 'served-images.test.ts']

await runMain(async () => {
  const args = process.argv.slice(2)
  const isAtHand = args.includes('--at-hand')
  const given = args.filter((arg) => arg !== '--at-hand')
  const isBuilt = existsSync(engineFolder(root, programsName)) || findArchive(root, 'kubernetes') !== undefined
  const reason =
    whyNoKubernetes() ?? (isBuilt || !isAtHand ? undefined : 'no built Kubernetes is at hand (SANDYARD_ENGINES_CACHE)')
  if (reason !== undefined) return nothingTested(reason)
  ensureNodePackages(root)
  const all = readdirSync(join(root, folder)).filter((name) => name.endsWith('.test.ts'))
  const chosen = all.filter((name) => !isAtHand || !longest.includes(name)).map((name) => join(folder, name))
  if (isAtHand && given.length === 0)
    say(`NOT RUN with --at-hand, because they take a minute or more each: ${longest.join(', ')}`)
  const paths = given.length === 0 ? chosen : given
  try {
    const programs = ensureKubernetesPrograms(root)
    const helm = paths.some((path) => path.endsWith(chart)) ? ensureForChart() : {}
    return await runTestsOnMachine(
      root,
      () => startKubernetes(programs),
      (machine) => ({ paths, env: { ...environmentOf(machine.folder), ...helm } }),
    )
  } catch (error) {
    if (isAtHand && error instanceof SetUpFailure) return nothingTested(`the engine can't run here: ${error.message}`)
    throw error
  }
})

function nothingTested(reason) {
  say(`NOTHING WAS TESTED: ${reason}`)
  return 2
}

function ensureForChart() {
  ensurePackagingTools()
  return { SANDYARD_TEST_HELM: ensureHelm(root) }
}
