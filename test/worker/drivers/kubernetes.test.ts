import { makeFakeKubernetes } from '../../support/kubernetes-driver.ts'
import { describeKubernetesConformance } from './kubernetes-conformance.ts'

describeKubernetesConformance({
  name: 'kubernetes',
  whyNot: null,
  make: async () => {
    const { cluster, ...fake } = await makeFakeKubernetes()
    return {
      ...fake,
      open: () => fake.open({ claimSettings: { storageClass: 'folders', mode: 'ReadWriteOnce', sizeGib: 1 } }),
      pods: () => Promise.resolve([...cluster.pods.keys()]),
    }
  },
})
