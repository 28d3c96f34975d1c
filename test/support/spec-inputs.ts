import fc from 'fast-check'
import { eitherCasing } from '../../src/domain/casing.ts'
import * as spec from '../../src/domain/spec/spec.ts'
import type {
  InjectionInput,
  MountInput,
  PatchInput,
  SecretInput,
  SecretsInput,
  SpecInput,
  ViolationInput,
  HostPatternInput,
} from '../../src/domain/spec/spec-input.ts'

/** Texts that are no address block in CIDR notation, each for another reason. */
export const MALFORMED_ADDRESS_BLOCKS = [
  '10.0.0.0/33',
  '10.0.0',
  'example.com',
  '',
  'fe80::1%eth0',
  '10.0.0.0/8/8',
  '10.0.0.0/-1',
  '::/129',
] as const

/** Arbitrary valid create bodies. Each field is sometimes present, and closed sets use both spellings. */
export const specInputs: fc.Arbitrary<SpecInput> = makeSpecInputs()

/** A create body that gives this stored specification. */
export function asInput(stored: spec.SandboxSpec): unknown {
  const { secret_defaults, ...network } = stored.network
  return {
    ...stored,
    patches: stored.patches.map((patch) =>
      patch.type === 'file' ? { ...patch, content: [...Buffer.from(patch.content, 'base64')] } : patch,
    ),
    network: {
      ...network,
      secrets: { entries: network.secrets.map((secret) => ({ ...secret, value: 'v' })), ...secret_defaults },
    },
  }
}

function makeSpecInputs(): fc.Arbitrary<SpecInput> {
  const path = fc
    .array(fc.constantFrom('a', 'b', '.', 'c'), { minLength: 1, maxLength: 4 })
    .map((steps) => `/x/${steps.join('/')}`)
  const oneOf = <const Value extends string>(values: readonly Value[]) => fc.constantFrom(...eitherCasing(values))
  const mode = fc.option(fc.integer({ min: 0, max: 0o7777 }))
  const optional = { requiredKeys: [] }
  const options = fc.record(
    { readonly: fc.boolean(), noexec: fc.boolean(), nosuid: fc.boolean(), nodev: fc.boolean() },
    optional,
  )
  const share = {
    stat_virtualization: oneOf(spec.STAT_VIRTUALIZATIONS),
    host_permissions: oneOf(spec.HOST_PERMISSIONS),
    options,
  }
  const size = fc.option(fc.integer({ min: 1, max: 4096 }))
  const mount: fc.Arbitrary<MountInput> = fc.oneof(
    fc.record(
      { type: oneOf(['bind']), host: fc.constant('./d'), guest: path, quota_mib: size, ...share },
      { requiredKeys: ['type', 'host', 'guest'] },
    ),
    fc.record(
      { type: oneOf(['named']), name: fc.constant('v'), guest: path, ...share },
      { requiredKeys: ['type', 'name', 'guest'] },
    ),
    fc.record({ type: oneOf(['tmpfs']), guest: path, size_mib: size, options }, { requiredKeys: ['type', 'guest'] }),
    fc.record(
      {
        type: oneOf(['disk_image']),
        host: fc.constant('d.img'),
        guest: path,
        format: oneOf(spec.DISK_IMAGE_FORMATS),
        options,
      },
      { requiredKeys: ['type', 'host', 'guest', 'format'] },
    ),
  )
  const text = fc.string({ maxLength: 8 }).map((value) => value.replaceAll('\0', ''))
  const bytes = fc.array(fc.integer({ min: 0, max: 255 }), { maxLength: 16 })
  const patch: fc.Arbitrary<PatchInput> = fc.oneof(
    fc.record(
      { type: oneOf(['text']), path, content: text, mode, replace: fc.boolean() },
      { requiredKeys: ['type', 'path', 'content'] },
    ),
    fc.record({ type: oneOf(['file']), path, content: bytes, mode }, { requiredKeys: ['type', 'path', 'content'] }),
    fc.record(
      { type: oneOf(['copy_file']), src: fc.constant('s'), dst: path, mode },
      { requiredKeys: ['type', 'src', 'dst'] },
    ),
    fc.record({ type: oneOf(['copy_dir']), src: fc.constant('s'), dst: path, replace: fc.boolean() }),
    fc.record({ type: oneOf(['symlink']), target: fc.constant('../t'), link: path, replace: fc.boolean() }),
    fc.record({ type: oneOf(['mkdir']), path, mode }),
    fc.record({ type: oneOf(['remove']), path }),
    fc.record({ type: oneOf(['append']), path, content: text }),
  )
  const port = fc.record({ start: fc.integer({ min: 0, max: 100 }), end: fc.integer({ min: 100, max: 65_535 }) })
  const destination = fc.oneof(
    oneOf(['any']),
    fc.record({ group: oneOf(spec.DESTINATION_GROUPS) }),
    fc.record({ cidr: fc.constantFrom('10.0.0.0/8', 'fd00::/8', '1.1.1.1') }),
    fc.record({ domain: fc.constantFrom('Example.com', 'a.b') }),
    fc.record({ domain_suffix: fc.constantFrom('.example.com', 'b') }),
  )
  const rule = fc.record(
    { direction: oneOf(spec.DIRECTIONS), destination, action: oneOf(spec.ACTIONS), ports: fc.array(port, { maxLength: 3 }), protocols: fc.array(oneOf(spec.PROTOCOLS), { maxLength: 3 }) },
    { requiredKeys: ['direction', 'destination', 'action'] },
  ).filter(({ ports = [], protocols = [] }) => ports.length * protocols.length === 0 || protocols.some((one) => /tcp|udp/i.test(one))) // prettier-ignore
  const policy = fc.record(
    {
      default_egress: oneOf(spec.ACTIONS),
      default_ingress: oneOf(spec.ACTIONS),
      rules: fc.array(rule, { maxLength: 4 }),
    },
    optional,
  )
  const host: fc.Arbitrary<HostPatternInput> = fc.oneof(
    fc.record({ type: oneOf(['exact']), value: fc.constantFrom('a.com', 'A.com.', '10.0.0.1', '::1') }),
    fc.record({ type: oneOf(['wildcard']), value: fc.constant('*.a.com') }),
    fc.record({ type: oneOf(['any']) }),
  )
  const hosts = fc.array(host, { maxLength: 3 })
  const injection: fc.Arbitrary<InjectionInput> = fc.record(
    { headers: fc.boolean(), basic_auth: fc.boolean(), query_params: fc.boolean(), body: fc.constant(true) },
    { requiredKeys: ['body'] },
  )
  const action = fc.record({ type: oneOf(['block', 'block_and_log', 'block_and_terminate']) })
  const violation: fc.Arbitrary<ViolationInput> = fc.oneof(action, fc.record({ type: oneOf(['passthrough']), hosts }))
  const common = {
    value: text.filter((value) => /^[^\0\r\n]+$/.test(value)),
    allowed_hosts: fc.array(host, { minLength: 1, maxLength: 3 }),
  }
  const names = { env_var: fc.constantFrom('S', 'T'), placeholder: fc.constantFrom('$S', '$T') }
  const earlier = fc.record(
    { ...names, ...common, injection, on_violation: fc.option(violation) },
    { requiredKeys: ['env_var', 'value', 'allowed_hosts'] },
  )
  const substitution = fc.record(
    { headers: fc.constant(true), basic_auth: fc.boolean(), header_fields: fc.option(fc.constant(['Authorization', 'x-key'])), query: fc.boolean(), body: fc.boolean() },
    optional,
  ) // prettier-ignore
  const later = fc.record(
    { ...names, ...common, substitution, passthrough_hosts: hosts, violation_action: fc.option(action), require_tls_identity: fc.boolean() },
    { requiredKeys: ['env_var', 'value', 'allowed_hosts'] },
  ) // prettier-ignore
  const isOfOne = (entries: readonly SecretInput[]): boolean =>
    new Set(entries.map(({ env_var }) => env_var)).size === entries.length &&
    new Set(entries.map(({ env_var, placeholder = env_var }) => placeholder)).size === entries.length
  const entries = fc.array(fc.oneof(earlier, later), { maxLength: 2 }).filter(isOfOne)
  const secrets: fc.Arbitrary<SecretsInput> = fc.oneof(
    fc.record({ entries, on_violation: violation }, optional),
    fc.record({ entries, passthrough_hosts: hosts, violation_action: action }, optional),
  )
  const network = fc.record(
    { enabled: fc.boolean(), strict: fc.boolean(), max_connections: fc.option(fc.nat()), policy: fc.option(policy), secrets },
    optional,
  ) // prettier-ignore
  const words = fc.option(fc.array(text, { maxLength: 3 }))
  const runtime = fc.record(
    {
      cmd: words, entrypoint: words, hostname: fc.option(fc.constant('box')), log_level: fc.option(oneOf(spec.SANDBOX_LOG_LEVELS)),
      metrics_sample_interval_ms: fc.option(fc.nat()), disable_metrics_sample: fc.boolean(),
      scripts: fc.dictionary(fc.constantFrom('a', 'b.sh'), text), shell: fc.option(fc.constantFrom('', '/bin/sh')),
      user: fc.option(fc.constantFrom('', 'root', '1:1')), workdir: fc.option(path),
    },
    optional,
  ) // prettier-ignore
  const rlimit = fc.record({
    resource: oneOf(spec.RLIMIT_RESOURCES),
    soft: fc.nat({ max: 10 }),
    hard: fc.integer({ min: 10, max: Number.MAX_SAFE_INTEGER }),
  })
  const seconds = fc.option(fc.nat())
  return fc.record(
    {
      image: fc.oneof(fc.constant('box:1'), fc.record({ type: oneOf(['oci']), reference: fc.constant('registry.example/a@sha256:ab') })),
      pull_policy: oneOf(spec.PULL_POLICIES),
      resources: fc.record({ memory_mib: fc.integer({ min: 16, max: 1 << 20 }), vcpus: fc.integer({ min: 1, max: 64 }), disk_size_mib: fc.option(fc.integer({ min: 16, max: 1 << 20 })) }, optional),
      runtime,
      env: fc.array(fc.record({ key: fc.constantFrom('A', 'B'), value: text }), { maxLength: 4 }),
      labels: fc.dictionary(fc.constantFrom('team', 'tier'), fc.constantFrom('', 'ml')),
      rlimits: fc.uniqueArray(rlimit, { maxLength: 4, selector: ({ resource }) => resource.toLowerCase() }),
      mounts: fc.uniqueArray(mount, { maxLength: 4, selector: ({ guest }) => guest.replaceAll('/.', '') }),
      patches: fc.array(patch, { maxLength: 6 }),
      network,
      init: fc.option(fc.record({ cmd: fc.constantFrom('auto', '/sbin/init'), args: fc.array(text, { maxLength: 2 }) }, { requiredKeys: ['cmd'] })),
      security_profile: oneOf(spec.SECURITY_PROFILES),
      lifecycle: fc.record({ ephemeral: fc.boolean(), idle_timeout_secs: seconds, max_duration_secs: seconds }, optional),
    },
    { requiredKeys: ['image'] },
  ) // prettier-ignore
}
