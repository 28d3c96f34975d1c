import type { Ability } from '../../../domain/abilities.ts'
import type { SandboxNetworks } from '../../network/sandbox-network.ts'

/** The abilities that need the egress process. */
const NEED_REDIRECTION: readonly Ability[] = ['network_domains', 'secrets', 'tls_interception']

/** Those of a driver's abilities that the networks of this machine support. */
export function supportedBy({ canJudgeNames }: SandboxNetworks, abilities: readonly Ability[]): readonly Ability[] {
  return canJudgeNames ? abilities : abilities.filter((ability) => !NEED_REDIRECTION.includes(ability))
}
