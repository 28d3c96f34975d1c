// `node setup/engines/with-kubernetes.mjs PROGRAM [ARGUMENT…]`: runs a program in the network of a real Kubernetes of one node, which
// it starts and takes down. Builds nothing: it ends with 2 if the programs of the engine are not at hand.
import { existsSync } from 'node:fs'
import { fileURLToPath } from 'node:url'
import { runMain, say } from '../say.mjs'
import { runToEnd } from '../run-to-end.mjs'
import { engineFolder, findArchive } from './engine-programs.mjs'
import { environmentOf, startKubernetes } from './kubernetes.mjs'
import { ensureKubernetesPrograms, programsName, whyNoKubernetes } from './kubernetes-programs.mjs'
import { runOnMachine } from './run-on-machine.mjs'

const root = fileURLToPath(new URL('../..', import.meta.url))

await runMain(async () => {
  const isBuilt = existsSync(engineFolder(root, programsName)) || findArchive(root, 'kubernetes') !== undefined
  const reason =
    whyNoKubernetes() ?? (isBuilt ? undefined : 'no built Kubernetes is at hand; `npm run test:kubernetes` builds it')
  if (reason !== undefined) {
    say(`NOTHING WAS RUN: ${reason}`)
    return 2
  }
  const programs = ensureKubernetesPrograms(root)
  return await runOnMachine(
    () => startKubernetes(programs),
    ({ folder }, through) => {
      const [program, ...args] = [...through, ...process.argv.slice(2)]
      return runToEnd(program, args, { cwd: root, env: environmentOf(folder) })
    },
  )
})
