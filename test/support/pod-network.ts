import type { NetworkPolicy, Rule, SandboxSpec } from '../../src/domain/spec/spec.ts'
import { TOOLBOX, TOOLS_FOLDER, toolCommand } from '../../src/contract/workers/guest-tools.ts'
import type { DesiredRun } from '../../src/contract/workers/worker-protocol.ts'
import { TOOLBOX_IN_IMAGE } from '../../src/worker/drivers/kubernetes/helper-image.ts'
import { CANARY_CONTAINER, makeCanaryPod } from '../../src/worker/drivers/kubernetes/network/canary-objects.ts'
import { POD_SPEC } from '../worker/drivers/kubernetes-conformance.ts'
import { makeDesiredRun } from './desired-run.ts'
import type { TestDriver } from './kubernetes-driver.ts'
import { applyObject, kubectl } from './kubernetes.ts'
import { HELPER_IMAGE } from './real-kubernetes.ts'
import { DEFAULT_SPEC_FOR_TESTS } from './spec.ts'

/** A Pod of the real cluster, and where it has the toolbox. */
export type PodWithTools = { readonly pod: string; readonly container: string; readonly tools: string }

/** The real Pods of a namespace, and what they reach. */
export type PodNetwork = {
  /** A Pod without a policy and without rules, which listens on ports 8080 and 8081. */
  readonly target: PodWithTools
  /** Starts the target. Resolves with its address. */
  startTarget(): Promise<string>
  addressOf(pod: string): Promise<string>
  /** Which of these, as ADDRESS:PORT, a Pod can connect to. */
  reachedFrom(pod: PodWithTools, all: readonly string[]): Promise<readonly string[]>
  /** Runs a perl program in a Pod, and resolves with its standard output. */
  perl(pod: PodWithTools, program: string): Promise<string>
}

export function podNetworkOf(namespace: string): PodNetwork {
  const target: PodWithTools = { pod: 'target', container: CANARY_CONTAINER, tools: TOOLBOX_IN_IMAGE }
  const exec = ({ pod, container }: PodWithTools, command: readonly string[]): Promise<string> =>
    kubectl('exec', '-n', namespace, pod, '-c', container, '--', ...command)
  const addressOf = (pod: string): Promise<string> =>
    kubectl('get', 'pod', '-n', namespace, pod, '-o', 'jsonpath={.status.podIP}')
  return {
    target,
    async startTarget() {
      const input = { name: target.pod, image: HELPER_IMAGE, runtimeClass: null }
      const pod = makeCanaryPod({ owner: 'target', namespace }, 'server', input) as { readonly metadata: object }
      await applyObject({ ...pod, metadata: { ...pod.metadata, namespace } })
      await kubectl('wait', '-n', namespace, '--for=condition=Ready', `pod/${target.pod}`, '--timeout=60s')
      return await addressOf(target.pod)
    },
    addressOf,
    async reachedFrom(from, all) {
      const reaches = async (one: string): Promise<boolean> => {
        try {
          const [address = '', port = ''] = one.split(':')
          await exec(from, toolCommand('canary.pl', ['reach', address, port, '1'], from.tools))
          return true
        } catch (error) {
          if (/exit code 3/.test(String(error))) return false
          throw error
        }
      }
      const results = await Promise.all(all.map(reaches))
      return all.filter((_, index) => results[index] === true)
    },
    perl(pod, program) {
      const at = (name: string): string => `${pod.tools}/${name}`
      const run = [at(TOOLBOX.loader), '--library-path', at(TOOLBOX.libraries), at(TOOLBOX.perl)]
      return exec(pod, [...run, `-I${at(TOOLBOX.modules)}`, '-e', program])
    },
  }
}

type SandboxOfTest = {
  readonly network: Partial<SandboxSpec['network']>
  readonly network_ranges: DesiredRun['network_ranges']
}

/** The run of a sandbox that listens on port 8080. */
export function listeningRun({ network, network_ranges }: SandboxOfTest): DesiredRun {
  const { network: plainNetwork, runtime } = DEFAULT_SPEC_FOR_TESTS
  const [program = '', ...cmd] = toolCommand('canary.pl', ['listen', '8080'])
  const spec = {
    ...POD_SPEC,
    runtime: { ...runtime, entrypoint: [program], cmd },
    network: { ...plainNetwork, enabled: true, ...network },
  }
  return { ...makeDesiredRun(spec), network_ranges }
}

/** Starts a run as a Pod. Its disposal removes it. */
export async function startAsPod(driver: TestDriver | null, run: DesiredRun): Promise<PodWithTools & AsyncDisposable> {
  if (driver === null) throw new Error('the driver is not open')
  await driver.start(run, AbortSignal.timeout(60_000))
  const dispose = (): Promise<void> => driver.remove(run.run_id)
  return { pod: `sandyard-${run.run_id}`, container: 'sandbox', tools: TOOLS_FOLDER, [Symbol.asyncDispose]: dispose }
}

/** A rule for everything that goes out, with changes. */
export function egressRule(changes: Partial<Rule>): Rule {
  return { direction: 'egress', destination: 'any', action: 'allow', ports: [], protocols: [], ...changes }
}

export function egressPolicy(default_egress: 'allow' | 'deny', ...rules: readonly Rule[]): NetworkPolicy {
  return { default_egress, default_ingress: 'allow', rules }
}
