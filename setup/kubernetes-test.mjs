// `npm run test:kubernetes [-- TEST-FILE…]`: runs tests against a real Kubernetes of one node, which it starts and takes down.
// CONTRIBUTING.md says how slow this is.
import { delimiter, join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { ensureHelm } from './engines/engine-programs.mjs'
import { startKubernetes } from './engines/kubernetes.mjs'
import { ensureKubernetesPrograms } from './engines/kubernetes-programs.mjs'
import { runTestsOnMachine } from './engines/run-on-machine.mjs'
import { ensureNodePackages } from './node-packages.mjs'
import { runMain, say } from './say.mjs'
import { ensurePackagingTools } from './system-packages.mjs'

const root = fileURLToPath(new URL('..', import.meta.url))

await runMain(async () => {
  const reason = whyNot()
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
      env: {
        KUBECONFIG: join(folder, 'kubeconfig'),
        PATH: [join(folder, 'tools'), process.env.PATH].join(delimiter),
        SANDYARD_TEST_KUBERNETES: folder,
        SANDYARD_TEST_HELM: helm,
      },
    }),
  )
})

function whyNot() {
  if (process.platform !== 'linux' || process.arch !== 'x64') return 'Kubernetes is built for x64 Linux only'
  if (process.getuid?.() !== 0) return 'only root can run a kubelet'
  return undefined
}
