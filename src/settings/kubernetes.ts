import { integerBetween, listenAddress, nonEmptyText, oneOf, type ListenAddress, type Setting } from './setting.ts'

/** The settings of the driver `kubernetes`. */
export const KUBERNETES_SETTINGS = {
  kubeconfig: {
    variable: 'SANDYARD_KUBECONFIG',
    flag: null,
    fallback: null,
    unit: 'file',
    meaning:
      'a kubeconfig in JSON, for `--driver kubernetes` outside of the cluster (default: the service account of its Pod)',
    parse: nonEmptyText,
  } satisfies Setting<string>,
  kubernetesNamespace: {
    variable: 'SANDYARD_KUBERNETES_NAMESPACE',
    flag: null,
    fallback: null,
    unit: 'text',
    meaning: 'the namespace of the sandboxes of `--driver kubernetes` (default: that of the kubeconfig or of the Pod)',
    parse: nonEmptyText,
  } satisfies Setting<string>,
  kubernetesNamespaces: {
    variable: 'SANDYARD_KUBERNETES_NAMESPACES',
    flag: null,
    fallback: 'auto',
    unit: 'auto, organization, shared',
    meaning:
      'whether `--driver kubernetes` makes a namespace for each organization, named after SANDYARD_KUBERNETES_NAMESPACE; `auto`: if it has the rights',
    parse: oneOf(['auto', 'organization', 'shared']),
  } satisfies Setting<'auto' | 'organization' | 'shared'>,
  kubernetesNamespaceDays: {
    variable: 'SANDYARD_KUBERNETES_NAMESPACE_DAYS',
    flag: null,
    fallback: '7',
    unit: 'days',
    meaning:
      "after how many days without a sandbox `--driver kubernetes` deletes an organization's namespace, if nothing of others and no volume is in it; 0 keeps all",
    parse: integerBetween(0, 3_650),
  } satisfies Setting<number>,
  kubernetesRuntimeClass: {
    variable: 'SANDYARD_KUBERNETES_RUNTIME_CLASS',
    flag: null,
    fallback: null,
    unit: 'text',
    meaning:
      'the RuntimeClass of the Pods of `--driver kubernetes` (default: the default runtime of the nodes); handlers named `runsc` and `kata` raise the isolation level',
    parse: nonEmptyText,
  } satisfies Setting<string>,
  kubernetesVolumeClass: {
    variable: 'SANDYARD_KUBERNETES_VOLUME_CLASS',
    flag: null,
    fallback: null,
    unit: 'text',
    meaning:
      'the StorageClass of the PersistentVolumeClaims that volumes of `--driver kubernetes` become (default: it mounts no volumes)',
    parse: nonEmptyText,
  } satisfies Setting<string>,
  kubernetesVolumeMode: {
    variable: 'SANDYARD_KUBERNETES_VOLUME_MODE',
    flag: null,
    fallback: 'ReadWriteOnce',
    unit: 'ReadWriteOnce, ReadWriteOncePod, ReadWriteMany',
    meaning:
      'who may mount a claim at once: the sandboxes of one node, one sandbox, or sandboxes of all nodes; a claim keeps the mode that it was made with',
    parse: oneOf(['ReadWriteOnce', 'ReadWriteOncePod', 'ReadWriteMany']),
  } satisfies Setting<'ReadWriteOnce' | 'ReadWriteOncePod' | 'ReadWriteMany'>,
  kubernetesVolumeGib: {
    variable: 'SANDYARD_KUBERNETES_VOLUME_GIB',
    flag: null,
    fallback: '10',
    unit: 'GiB',
    meaning: 'the size of a new claim',
    parse: integerBetween(1, 1_048_576),
  } satisfies Setting<number>,
  kubernetesHelperImage: {
    variable: 'SANDYARD_KUBERNETES_HELPER_IMAGE',
    flag: null,
    fallback: null,
    unit: 'image',
    meaning:
      'where the cluster pulls the helper image that `sandyard image helper` writes; `--driver kubernetes` needs it',
    parse: nonEmptyText,
  } satisfies Setting<string>,
  kubernetesRegistry: {
    variable: 'SANDYARD_KUBERNETES_REGISTRY',
    flag: null,
    fallback: null,
    unit: 'host:port',
    meaning:
      'the address at which the nodes of the cluster reach the registry of `--driver kubernetes`, which serves images that were loaded into the worker (default: none are served)',
    parse: listenAddress,
  } satisfies Setting<ListenAddress>,
  kubernetesRegistryListen: {
    variable: 'SANDYARD_KUBERNETES_REGISTRY_LISTEN',
    flag: null,
    fallback: '0.0.0.0:5443',
    unit: 'host:port',
    meaning: 'the address on which that registry listens',
    parse: listenAddress,
  } satisfies Setting<ListenAddress>,
  kubernetesRegistryCert: {
    variable: 'SANDYARD_KUBERNETES_REGISTRY_CERT',
    flag: null,
    fallback: null,
    unit: 'file',
    meaning:
      "the certificate of that registry with its chain, in PEM; it is read again when it changes (default: one of the worker's own, in its data folder)",
    parse: nonEmptyText,
  } satisfies Setting<string>,
  kubernetesRegistryKey: {
    variable: 'SANDYARD_KUBERNETES_REGISTRY_KEY',
    flag: null,
    fallback: null,
    unit: 'file',
    meaning: 'the key of that certificate, in PEM',
    parse: nonEmptyText,
  } satisfies Setting<string>,
  kubernetesNetwork: {
    variable: 'SANDYARD_KUBERNETES_NETWORK',
    flag: null,
    fallback: 'prove',
    unit: 'prove, rules, cluster',
    meaning:
      'who decides what the sandboxes of `--driver kubernetes` reach: with `prove`, NetworkPolicies of that driver, which starts only in a cluster that is proved to enforce them; with `rules`, packet rules that each Pod loads before its sandbox runs, for which namespaces must admit the capability NET_ADMIN; with `cluster`, only what you set up in the cluster',
    parse: oneOf(['prove', 'rules', 'cluster']),
  } satisfies Setting<'prove' | 'rules' | 'cluster'>,
} as const
