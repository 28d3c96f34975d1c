import type { FormValues } from '../../ui/form.tsx'

/** The body of a create request from the fields of the form. Throws a sentence about a line that can't be read. */
export function bodyOf(values: FormValues): Readonly<Record<string, unknown>> {
  const whole = (name: string): number | null => (values.text(name) === '' ? null : Number(values.text(name)))
  const command = values.text('cmd')
  return {
    ...(values.text('name') === '' ? {} : { name: values.text('name') }),
    image: values.text('image'),
    resources: { vcpus: whole('vcpus'), memory_mib: whole('memory_mib'), disk_size_mib: whole('disk_size_mib') },
    lifecycle: {
      ephemeral: values.isOn('ephemeral'),
      idle_timeout_secs: minutes(whole('idle_minutes')),
      max_duration_secs: minutes(whole('max_minutes')),
    },
    ...(command === '' ? {} : { runtime: { cmd: ['sh', '-c', command] } }),
    env: pairs(values.text('env'), 'environment').map(([key, value]) => ({ key, value })),
    labels: Object.fromEntries(pairs(values.text('labels'), 'label')),
    mounts: lines(values.text('mounts')).map(mountOf),
    network: networkOf(values),
  }
}

const minutes = (count: number | null): number | null => (count === null ? null : count * 60)
const lines = (text: string): string[] => text.split('\n').flatMap((line) => (line.trim() === '' ? [] : [line.trim()]))

function pairs(text: string, what: string): [string, string][] {
  return lines(text).map((line) => {
    const [, key, value] = /^([^=]+)=(.*)$/.exec(line) ?? []
    if (key === undefined || value === undefined) throw new Error(`${what}: “${line}” is not of the form KEY=value.`)
    return [key, value]
  })
}

/** `data:/srv/data` or `data:/srv/data:ro`. */
function mountOf(line: string): object {
  const [, name, guest, mode] = /^([^:]+):(\/[^:]*)(?::(ro))?$/.exec(line) ?? []
  if (name === undefined) throw new Error(`mounts: “${line}” is not of the form VOLUME:/path or VOLUME:/path:ro.`)
  return { type: 'named', name, guest, options: { readonly: mode === 'ro' } }
}

/** The network of each preset. An empty policy means public addresses and names, and nothing private. */
export const NETWORK_PRESETS = {
  public: { label: 'Internet, nothing private', network: () => ({}) },
  none: { label: 'No network', network: () => ({ enabled: false }) },
  names: {
    label: 'Only these names',
    network: (values: FormValues) => ({
      policy: {
        default_egress: 'deny',
        default_ingress: 'deny',
        rules: lines(values.text('names').replaceAll(/[\s,]+/g, '\n')).map((name) => ({
          direction: 'egress',
          action: 'allow',
          destination: name.startsWith('*.') ? { domain_suffix: name.slice(2) } : { domain: name },
        })),
      },
    }),
  },
  custom: { label: 'My own rules', network: (values: FormValues) => ({ policy: parseJson(values.text('policy')) }) },
} as const
export type NetworkPreset = keyof typeof NETWORK_PRESETS

function networkOf(values: FormValues): object {
  const preset = values.text('network') as NetworkPreset // the form has no other choice
  const secrets = lines(values.text('secrets')).map(secretOf)
  return {
    ...NETWORK_PRESETS[preset].network(values),
    ...(secrets.length === 0 ? {} : { secrets: { entries: secrets } }),
  }
}

function parseJson(text: string): unknown {
  try {
    return JSON.parse(text)
  } catch (error) {
    throw new Error(`network policy: this is not JSON: ${error instanceof Error ? error.message : ''}`, {
      cause: error,
    })
  }
}

/** `TOKEN=value @ api.example.com other.example.com`: the value reaches these hosts alone. */
function secretOf(line: string): object {
  const [, env_var, value, hosts] = /^([^=\s]+)=(.*\S)\s+@\s+(.+)$/.exec(line) ?? []
  if (env_var === undefined || hosts === undefined)
    throw new Error('secrets: each line is of the form NAME=value @ host.example.com.')
  return { env_var, value, allowed_hosts: hosts.split(/[\s,]+/).map((host) => ({ type: 'exact', value: host })) }
}

export const EXAMPLE_POLICY = JSON.stringify(
  {
    default_egress: 'deny',
    default_ingress: 'deny',
    rules: [
      {
        direction: 'egress',
        action: 'allow',
        destination: { cidr: '192.0.2.0/24' },
        protocols: ['tcp'],
        ports: [{ start: 443, end: 443 }],
      },
    ],
  },
  null,
  2,
)
