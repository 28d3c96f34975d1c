// `npm run test:kubernetes [-- TEST-FILE…]`: runs tests against a real Kubernetes of one node, which it starts and takes down.
// CONTRIBUTING.md says how slow this is.
import { fileURLToPath } from 'node:url'
import { ensureHelm } from './engines/engine-programs.mjs'
import { environmentOf, startKubernetes } from './engines/kubernetes.mjs'
import { ensureKubernetesPrograms, whyNoKubernetes } from './engines/kubernetes-programs.mjs'
import { runTestsOnMachine } from './engines/run-on-machine.mjs'
import { ensureNodePackages } from './node-packages.mjs'
import { runMain, say } from './say.mjs'
import { ensurePackagingTools } from './system-packages.mjs'

const root = fileURLToPath(new URL('..', import.meta.url))

await runMain(async () => {
  const reason = whyNoKubernetes()
  if (reason !== undefined) {
    say(`NOTHING WAS TESTED: ${reason}`)
    return 2
  }
  ensureNodePackages(root)
  ensurePackagingTools()
  const programs = ensureKubernetesPrograms(root)
  const helm = ensureHelm(root)
  const given = process.argv.slice(2)
  return await runTestsOnMachine(
    root,
    () => startKubernetes(programs),
    ({ folder }) => ({
      paths: given.length === 0 ? ['test/kubernetes'] : given,
      env: { ...environmentOf(folder), SANDYARD_TEST_HELM: helm },
    }),
  )
})
